"""Blocks in memory: no byte is two planes', layouts survive JSON, and buffers and allocators say what they lack."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import ConfigError
from tenuto.memory.allocators import ALLOCATORS, Heap, Shared, allocator_of
from tenuto.memory.arena import HostArena
from tenuto.memory.blocklayout import DTYPES, KINDS, Layout
from tenuto.memory.blockmemory import BlockMemory
from tenuto.memory.formats import MLA, KvFormat
from tenuto.memory.layout import align_up
from tenuto.memory.paged import ArenaView, PagedKV
from tenuto.memory.pages import PageRun
from tenuto.transfers.lanes.arrays import ArrayDevice
from tenuto.transfers.lanes.cpu import CpuDevice

pytestmark = pytest.mark.unit

layouts = st.builds(
    Layout,
    kind=st.sampled_from(KINDS),
    n_blocks=st.integers(1, 4),
    n_layers=st.integers(1, 3),
    outer_dim=st.integers(1, 2),
    page_tokens=st.integers(1, 5),
    inner_dim=st.sampled_from([1, 3, 8]),
    dtype=st.sampled_from(sorted(DTYPES)),
    alignment=st.sampled_from([4, 64, 4096]),
)


def planes(layout):
    return [
        (block, layer, outer)
        for block in range(layout.n_blocks)
        for layer in range(layout.n_layers)
        for outer in range(layout.outer_dim)
    ]


@given(layouts)
def test_no_byte_belongs_to_two_planes_and_blocks_are_aligned(layout):
    owner = np.zeros(layout.buffer_bytes, int)
    for plane in planes(layout):
        at = layout.offset(*plane)
        owner[at : at + layout.plane_bytes] += 1
    assert owner.max() == 1
    assert owner.sum() == len(planes(layout)) * layout.plane_bytes
    assert {layout.offset(block, 0, 0) % layout.alignment for block in range(layout.n_blocks)} == {0}


@given(layouts.filter(lambda layout: layout.kind == "contiguous"))
def test_blocks_of_a_contiguous_layout_are_as_far_apart_as_the_design_says(layout):
    assert layout.block_stride == align_up(layout.n_layers * layout.layer_stride, layout.alignment)
    assert layout.layer_stride == layout.outer_dim * layout.page_tokens * layout.inner_dim * layout.itemsize


@given(layouts)
def test_a_layout_is_the_same_after_json(layout):
    assert Layout.from_json(layout.to_json()) == layout
    assert Layout.from_dict(layout.to_dict()) == layout


GOOD = Layout("contiguous", 4, 2, 2, 16, 8, "float16").to_dict()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"kind": "spiral"}, "layout.kind: 'spiral' is not known; give 'contiguous' or 'per layer'"),
        ({"dtype": "int3"}, "layout.dtype: 'int3' is not known"),
        ({"outer_dim": 3}, "layout.outer_dim: 3 is not known; give 1 or 2"),
        ({"n_blocks": 0}, "layout.n_blocks: 0 is no number of at least 1"),
        ({"n_layers": True}, "layout.n_layers: True is no number"),
        ({"n_layers": 1 << 16}, "layout.n_layers: 65536 are too many"),
        ({"inner_dim": 1.5}, "layout.inner_dim: 1.5 is no number"),
        ({"alignment": 48}, "layout.alignment: 48 is no power of two of at least 2 bytes"),
        ({"alignment": 1}, "layout.alignment: 1 is no power of two of at least 2 bytes"),
        ({"blocks": 4}, "layout.blocks: unknown field; known: kind, n_blocks"),
    ],
)
def test_what_is_no_layout_is_refused_when_it_is_read(change, line):
    with pytest.raises(ConfigError) as raised:
        Layout.from_dict(GOOD | change)
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"kind": "contiguous"}'])
def test_what_is_no_json_of_a_layout_is_refused(text):
    with pytest.raises(ConfigError, match=r"^layout"):
        Layout.from_json(text)


@pytest.mark.parametrize("plane", [(4, 0, 0), (-1, 0, 0), (0, 2, 0), (0, 0, 2)])
def test_a_plane_outside_is_an_error(plane):
    with pytest.raises(IndexError, match=" of "):
        BlockMemory(Layout.from_dict(GOOD), bytearray(1 << 14)).view(*plane)


def memories(layout):
    """The same layout over memory of several kinds."""
    n_bytes = layout.buffer_bytes
    yield BlockMemory(layout, np.zeros(n_bytes, np.uint8))
    yield BlockMemory(layout, torch.zeros(n_bytes, dtype=torch.uint8))
    yield BlockMemory(layout, Shared().allocate(n_bytes))
    if layout.kind == "per layer":
        size = layout.region_bytes
        yield BlockMemory(layout, [np.zeros(size, np.uint8) for _ in range(layout.n_layers)])
        yield BlockMemory(layout, [torch.zeros(size, dtype=torch.uint8) for _ in range(layout.n_layers)])


@given(layouts, st.integers(0, 63))
def test_a_buffer_of_the_bytes_that_a_layout_says_is_used_from_its_first_byte_whatever_its_address(layout, shift):
    def buffer(size):
        return Heap().allocate(size + shift)[shift:]

    is_split = layout.kind == "per layer"
    for buffers in [[buffer(layout.buffer_bytes)], [buffer(layout.region_bytes) for _ in range(layout.n_layers)]][
        : 1 + is_split
    ]:
        given = buffers[0] if len(buffers) == 1 else buffers
        if shift % layout.itemsize:
            with pytest.raises(
                ConfigError, match=rf"^buffer: it begins at 0x\w+, between two elements of {layout.itemsize}"
            ):
                BlockMemory(layout, given)
            return
        memory = BlockMemory(layout, given)
        for number, plane in enumerate(planes(layout)):
            write(memory.view(*plane), bytes([number + 1]) * layout.plane_bytes)
            at, layer = layout.offset(*plane), plane[1]
            if len(buffers) > 1:
                at -= layer * layout.layer_stride
            found = buffers[layer if len(buffers) > 1 else 0][at : at + layout.plane_bytes]
            assert set(found.tolist()) == {number + 1}


def as_bytes(plane):
    return (plane.view(torch.uint8).numpy() if isinstance(plane, torch.Tensor) else plane).tobytes()


def write(plane, data):
    if isinstance(plane, torch.Tensor):
        plane.view(torch.uint8)[:] = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(plane.shape[0], -1)
    else:
        plane[:] = np.frombuffer(data, plane.dtype).reshape(plane.shape)


@given(layouts)
def test_views_of_any_memory_go_through_extents_and_back_bit_for_bit(layout):
    rng = np.random.default_rng(0)
    content = {plane: rng.bytes(layout.plane_bytes) for plane in planes(layout)}
    for memory in memories(layout):
        arena = HostArena(layout.n_blocks, layout.extent().extent_bytes)
        device = ArrayDevice(memory, arena)
        for plane, data in content.items():
            assert memory.view(*plane).shape == (layout.page_tokens, layout.inner_dim)
            write(memory.view(*plane), data)
        runs = [PageRun((block,)) for block in reversed(range(layout.n_blocks))]
        device.gather(runs, range(layout.n_blocks))
        for plane in content:
            write(memory.view(*plane), bytes(layout.plane_bytes))
        for layer in reversed(range(layout.n_layers)):
            device.scatter(runs, range(layout.n_blocks), None, (layer, layer + 1))
        assert {plane: as_bytes(memory.view(*plane)) for plane in content} == content


@given(layouts)
def test_a_gpus_way_sees_the_same_bytes(layout):
    """`PagedKV`, which the kernels go by, over the same memory on the CPU."""
    for memory in memories(layout):
        if not isinstance(memory.view(0, 0, 0), torch.Tensor):
            continue
        arenas = [HostArena(layout.n_blocks, layout.extent().extent_bytes) for _ in range(2)]
        for number, plane in enumerate(planes(layout)):
            write(memory.view(*plane), np.random.default_rng(number).bytes(layout.plane_bytes))
        kv_format = MLA if layout.outer_dim == 1 else KvFormat("PKTHD")
        kv = PagedKV(memory.tensors(), layout.extent(), layout.page_tokens, kv_format)
        runs = [PageRun((block,)) for block in range(layout.n_blocks)]
        ArrayDevice(memory, arenas[0]).gather(runs, range(layout.n_blocks))
        CpuDevice(kv, ArenaView(arenas[1], layout.extent(), kv.dtype)).gather(runs, range(layout.n_blocks))
        assert bytes(arenas[0].view) == bytes(arenas[1].view)


SMALL = Layout("per layer", 4, 2, 2, 16, 8, "float16")
BOTH = np.zeros(2 * SMALL.region_bytes, np.uint8)


@pytest.mark.parametrize(
    ("buffer", "line"),
    [
        (np.zeros(100, np.uint8), "buffer: 100 bytes are too few; give 4096"),
        (bytes(1 << 14), "buffer: the array is not contiguous or not writable"),
        (np.zeros((200, 200), np.uint8).T, "buffer: the array is not contiguous"),
        (torch.zeros(200, 200).T, "buffer: the tensor is not contiguous"),
        ("text", "buffer: str gives no memory"),
        ([np.zeros(8000, np.uint8)] * 3, "buffer: 3 buffers for 2 layers"),
        (np.zeros(4096, np.float32), "buffer: float32 is not the layout's float16; give float16 of the shape (2, 4, 2"),
        (torch.zeros(4096), "buffer: torch.float32 is not the layout's float16; give"),
        (np.zeros((4, 2, 2, 16, 8), np.float16), "buffer: the shape (4, 2, 2, 16, 8) of float16 is not the layout's; "),
        (torch.zeros((2, 4, 2, 8, 16)).half(), "buffer: the shape (2, 4, 2, 8, 16) of torch.float16 is not"),
        (np.zeros((2, 4, 2, 16, 8), np.uint8), "buffer: the shape (2, 4, 2, 16, 8) of uint8 is not"),
        ([np.zeros((2, 4, 2, 16, 8), np.float16)] * 2, "buffer: the shape (2, 4, 2, 16, 8) of float16 is not"),
        ([np.zeros((4, 2, 16, 8), np.float16)] * 2, "buffer: those of layers 0 and 1 share memory; give each its own"),
        ([BOTH[1 << 10 :], BOTH], "buffer: those of layers 0 and 1 share memory; give each its own"),
        ([BOTH, torch.zeros(2048, dtype=torch.uint8, device="meta")], "buffer: the layers are on cpu and meta; give"),
    ],
)
def test_a_buffer_that_will_not_do_is_told_in_one_line(buffer, line):
    with pytest.raises(ConfigError) as raised:
        BlockMemory(SMALL, buffer)
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "bytes"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_array_of_the_layouts_shape_holds_block_after_block_with_heads_or_without(kind, dtype):
    layout = Layout(kind, 3, 2, 2, 4, 8, dtype)
    for shape in (layout.shape, (*layout.shape[:-1], 4, 2), (int(np.prod(layout.shape)),)):
        array = np.zeros(shape, {"bfloat16": "u2", "bytes": "u1"}.get(dtype, dtype))
        tensor = torch.zeros(shape, dtype=getattr(torch, "uint8" if dtype == "bytes" else dtype))
        for whole in (array, tensor):
            BlockMemory(layout, whole).view(2, 1, 0)[:] = 1
            at = (2, 1, 0) if kind == "contiguous" else (1, 2, 0)
            assert (whole.reshape(layout.shape)[at] == 1).all()
            assert (whole == 1).sum() == 4 * 8
    if kind == "per layer":
        layers = [np.zeros(layout.shape[1:], array.dtype) for _ in range(2)]
        BlockMemory(layout, layers).view(2, 1, 0)[:] = 1
        assert (layers[1][2, 0] == 1).all()


def test_an_array_whose_blocks_lie_closer_than_the_layouts_is_told_of_the_alignment():
    for whole in (np.zeros((3, 1, 1, 5, 3), np.float32), np.zeros((3, 1, 5, 3), np.float32)):
        with pytest.raises(ConfigError, match=r"180 bytes are too few; give 192 \(a block has 60 .*alignment=4 has no"):
            BlockMemory(Layout("contiguous", 3, 1, 1, 5, 3, "float32"), whole)
        BlockMemory(Layout("contiguous", 3, 1, 1, 5, 3, "float32", alignment=4), whole).view(2, 0, 0)[:] = 1
        assert (whole[2] == 1).all()


@pytest.mark.parametrize("allocator", [Heap(), Shared()], ids=["heap", "shared"])
def test_memory_that_cannot_be_had_is_told_in_one_line(allocator):
    with pytest.raises(ConfigError, match=r"^allocator: .* memory can't be had .*; give less$"):
        allocator.allocate(1 << 62)


@pytest.mark.parametrize("name", ["pinned", "device"])
@pytest.mark.parametrize("has_torch", [True, False])
def test_without_a_gpu_or_torch_its_allocators_say_so(monkeypatch, name, has_torch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if not has_torch:
        monkeypatch.setattr("tenuto.memory.allocators.find_spec", lambda _: None)
    what = "torch sees none" if has_torch else "torch, which is not in this Python"
    with pytest.raises(ConfigError, match=rf'^allocator: "{name}" needs .*{what}'):
        allocator_of(name).allocate(8)


def test_an_unknown_allocator_is_told_with_those_there_are():
    with pytest.raises(ConfigError, match=r"^allocator: 'gold' is not known; give 'heap', 'shared', "):
        allocator_of("gold")
    assert set(ALLOCATORS) == {"heap", "shared", "pinned", "device"}
