"""Copies between paged KV and payloads, against numpy: the torch reference, and the Triton kernels.

The kernels run where there is a GPU (``pytest tests/memory/test_movers.py -m kernels``), or in Triton's interpreter,
which test_interpreter.py starts.
"""

import dataclasses
import os

import numpy as np
import pytest
import torch

from tenuto.memory.arena import HostArena
from tenuto.memory.kernels import BlockMover, TorchMover
from tenuto.memory.layout import Dtype
from tenuto.memory.paged import ArenaView, PagedKV
from tenuto.memory.pages import PageRun
from tenuto.testing.kvshapes import (
    ARRANGEMENTS,
    DTYPES_BY_CODE,
    MLA_ARRANGEMENTS,
    SHAPES,
    all_cases,
    cases,
    payload_of,
    random_truth,
)

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
FILL = 0xA5
N_PAGES = 7  # of the manager's
BLOCKS = [(3, 0, 5), (1, 6, 2)]


def small_tiles(kv):
    """Many tiles in a segment, the last one partial."""
    return BlockMover(kv, tile_bytes=512)


MOVERS = [
    pytest.param(TorchMover, marks=pytest.mark.unit, id="torch"),
    pytest.param(BlockMover, marks=pytest.mark.kernels, id="triton"),
    pytest.param(small_tiles, marks=pytest.mark.kernels, id="triton-small-tiles"),
]
CASES = all_cases() if HAS_GPU else cases()
every_case = pytest.mark.parametrize(
    "case", CASES, ids=[f"{shape}-{name}-{dtype.name.lower()}" for shape, name, dtype in CASES]
)
every_mover = pytest.mark.parametrize("make", MOVERS)


class Rig:
    """An engine's memory, its bytes by numpy, and rows to copy to and from."""

    def __init__(self, case=("tiny", "vllm-hnd", Dtype.BFLOAT16), make=TorchMover, device=DEVICE):
        name, arrangement, dtype = case
        self.shape = dataclasses.replace(SHAPES[name], dtype=dtype)
        self.layout = self.shape.layout
        self.arrangement = (ARRANGEMENTS | MLA_ARRANGEMENTS)[arrangement]
        self.device = device
        self.ratio = self.shape.page_tokens // self.shape.page_rows
        self.truth = random_truth(self.shape, N_PAGES)
        self.load(self.truth)
        self.make = make
        self.mover = make(self.kv)

    def load(self, truth):
        """Replace the engine's memory."""
        self.tensors = self.arrangement.tensors(truth, self.shape.dtype, self.device)
        self.kv = PagedKV(self.tensors, self.layout, self.shape.page_tokens, self.arrangement.kv_format)
        return self.kv

    def tables(self, firsts=(0, 0)):
        runs = [PageRun(pages, first) for pages, first in zip(BLOCKS, firsts, strict=True)]
        return [torch.from_numpy(array).to(self.device) for array in self.kv.page_table(runs)]

    def kernel_pages(self, block, first=0):
        return [page * self.ratio + part for page in BLOCKS[block][first:] for part in range(self.ratio)]

    def rows(self, n_rows, n_bytes, pin=False):
        rows = torch.full((n_rows, n_bytes), FILL, dtype=torch.uint8, device="cpu" if pin else self.device)
        return rows.pin_memory() if pin else rows

    def payload(self, block, layers=slice(None)):
        return payload_of(self.truth[layers], self.kernel_pages(block), self.layout.segment_bytes, FILL)

    def payloads(self):
        return torch.from_numpy(np.stack([self.payload(0), self.payload(1)])).to(self.device)

    def assert_memory(self, truth):
        """The engine's memory, and the bytes between its pages, are these."""
        wanted = self.arrangement.tensors(truth, self.shape.dtype, self.device)
        for tensor, other in zip(flat(self.tensors), flat(wanted), strict=True):
            assert torch.equal(raw(tensor), raw(other))


def flat(tensors):
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for item in tensors for tensor in flat(item)]


def raw(tensor):
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)


def host(tensor):
    if HAS_GPU:
        torch.cuda.synchronize()
    return tensor.cpu().numpy()


@every_case
@pytest.mark.unit
def test_strided_copies_give_the_payloads_of_the_format_and_take_them_back(case):
    rig = Rig(case, device="cpu")
    arena = HostArena(3, rig.layout.extent_bytes)
    arena.view[:] = bytes([FILL]) * len(arena.view)
    view = ArenaView(arena, rig.layout, DTYPES_BY_CODE[rig.shape.dtype])
    runs = [PageRun(pages) for pages in BLOCKS]
    rig.kv.gather(runs, view, [2, 0])
    for block, slot in enumerate((2, 0)):
        extent = np.frombuffer(arena.slot(slot), np.uint8)
        np.testing.assert_array_equal(extent[rig.layout.header_bytes :], rig.payload(block))
    rig.load(np.zeros_like(rig.truth)).scatter([PageRun(BLOCKS[0], 1)], view, [2])
    wanted = np.zeros_like(rig.truth)
    wanted[:, rig.kernel_pages(0, 1)] = rig.truth[:, rig.kernel_pages(0, 1)]
    rig.assert_memory(wanted)
    del view, extent


@every_case
@every_mover
def test_gathered_blocks_are_the_payloads_of_the_format(case, make):
    rig = Rig(case, make)
    pages, _ = rig.tables()
    out = rig.rows(3, rig.layout.n_layers * rig.layout.segment_bytes)
    rig.mover.gather(pages, out, 3)
    np.testing.assert_array_equal(
        host(out), np.stack([rig.payload(0), rig.payload(1), np.full_like(host(out)[2], FILL)])
    )
    rig.assert_memory(rig.truth)


@every_case
@every_mover
def test_scattered_blocks_lie_in_their_pages_and_nowhere_else(case, make):
    rig = Rig(case, make)
    source = rig.payloads()
    mover = make(rig.load(np.zeros_like(rig.truth)))
    mover.scatter(*rig.tables((0, 2)), source, 3)
    wanted = np.zeros_like(rig.truth)
    for block, first in enumerate((0, 2)):
        wanted[:, rig.kernel_pages(block, first)] = rig.truth[:, rig.kernel_pages(block, first)]
    host(source)
    rig.assert_memory(wanted)


def slots_of(rig):
    """A block and a half of tokens of two blocks, one left out: (slots, [(row, token of the block, page, offset)])."""
    rows, tokens = rig.shape.page_rows, rig.layout.block_tokens
    places = [(page, offset) for block in (0, 1) for page in rig.kernel_pages(block) for offset in range(rows)]
    places = places[: tokens + tokens // 2]
    left_out = len(places) // 3
    slots = [-1 if t == left_out else page * rows + offset for t, (page, offset) in enumerate(places)]
    moved = [(*divmod(t, tokens), *place) for t, place in enumerate(places) if t != left_out]
    return torch.tensor(slots, dtype=torch.int64, device=rig.device), moved


def runs_of(rig, rows):
    """Rows of one segment as (rows, heads, planes, block_tokens, row_bytes), a view."""
    used = rig.layout.n_heads * rig.layout.run_bytes
    return rows[:, :used].reshape(len(rows), rig.layout.n_heads, rig.shape.n_planes, rig.layout.block_tokens, -1)


@every_case
@every_mover
def test_one_layer_moves_by_slots_with_a_partial_last_block(case, make):
    rig = Rig(case, make)
    slots, moved = slots_of(rig)
    out = rig.rows(2, rig.layout.segment_bytes)
    rig.mover.gather_layer(1, slots, out, 2)
    wanted = np.full(out.shape, FILL, np.uint8)
    runs = runs_of(rig, wanted)  # a copy where the segment is padded
    for row, token, page, offset in moved:
        runs[row, :, :, token] = rig.truth[1, page, :, :, offset]
    wanted[:, : runs[0].size] = runs.reshape(2, -1)
    np.testing.assert_array_equal(host(out), wanted)
    mover = make(rig.load(np.zeros_like(rig.truth)))
    mover.scatter_layer(1, slots, out, 2)
    host(out)
    there = np.zeros_like(rig.truth)
    for _, _, page, offset in moved:
        there[1, page, :, :, offset] = rig.truth[1, page, :, :, offset]
    rig.assert_memory(there)


@pytest.mark.parametrize("n_programs", [1, 2, 50])
@every_mover
def test_some_layers_move_alone(make, n_programs):
    rig = Rig(make=make)
    pages, first = rig.tables()
    out = rig.rows(2, 2 * rig.layout.segment_bytes)
    rig.mover.gather(pages, out, n_programs, layers=(1, 3))
    np.testing.assert_array_equal(host(out), np.stack([rig.payload(block, slice(1, 3)) for block in (0, 1)]))
    mover = make(rig.load(np.zeros_like(rig.truth)))
    mover.scatter(pages, first, out, n_programs, layers=(1, 3))
    host(out)
    wanted = np.zeros_like(rig.truth)
    for block in (0, 1):
        wanted[1:3, rig.kernel_pages(block)] = rig.truth[1:3, rig.kernel_pages(block)]
    rig.assert_memory(wanted)


@every_mover
def test_rows_may_lie_apart_as_in_an_arena(make):
    rig = Rig(make=make)
    size = rig.layout.n_layers * rig.layout.segment_bytes
    arena = rig.rows(2, rig.layout.extent_bytes, pin=HAS_GPU and make is not TorchMover)  # pinned: kernels reach it
    pages, first = rig.tables()
    rig.mover.gather(pages, arena[:, rig.layout.header_bytes :], 2)
    np.testing.assert_array_equal(host(arena)[:, -size:], np.stack([rig.payload(0), rig.payload(1)]))
    assert (host(arena)[:, :-size] == FILL).all()
    make(rig.load(np.zeros_like(rig.truth))).scatter(pages, first, arena[:, rig.layout.header_bytes :], 2)
    host(arena)
    wanted = np.zeros_like(rig.truth)
    for block in (0, 1):
        wanted[:, rig.kernel_pages(block)] = rig.truth[:, rig.kernel_pages(block)]
    rig.assert_memory(wanted)


@every_mover
def test_no_blocks_move_nothing(make):
    rig = Rig(make=make)
    pages, first = rig.tables()
    out = rig.rows(1, rig.layout.n_layers * rig.layout.segment_bytes)
    rig.mover.gather(pages[:0], out, 4)
    rig.mover.scatter(pages[:0], first[:0], out, 4)
    rig.mover.gather_layer(0, torch.empty(0, dtype=torch.int64, device=rig.device), out, 4)
    assert (host(out) == FILL).all()
    rig.assert_memory(rig.truth)


@pytest.mark.parametrize("fault", ["short", "few", "unaligned", "dtype", "pages"])
@every_mover
def test_rows_that_cannot_hold_the_blocks_are_refused(make, fault):
    rig = Rig(make=make)
    pages, _ = rig.tables()
    size = rig.layout.n_layers * rig.layout.segment_bytes
    rows = {
        "short": rig.rows(2, size - 1),
        "few": rig.rows(1, size),
        "unaligned": rig.rows(2, size + 16)[:, 8:],
        "dtype": rig.rows(2, size).view(torch.int8),
        "pages": rig.rows(2, size),
    }[fault]
    with pytest.raises(ValueError, match=r"can't hold|aligned|not rows"):
        rig.mover.gather(pages[:, :2] if fault == "pages" else pages, rows, 1)


@pytest.mark.kernels
@pytest.mark.skipif(not HAS_GPU, reason="the interpreter compiles nothing")
def test_nothing_is_compiled_after_the_warm_up():
    from tenuto.memory.kernels import copy

    rig = Rig(make=BlockMover)
    rig.mover.warm_up()

    def n_compiled():
        return [len(cache[0]) for f in (copy.move_blocks, copy.move_layer) for cache in f.device_caches.values()]

    before = n_compiled()
    pages, first = rig.tables()
    rows = rig.rows(2, rig.layout.n_layers * rig.layout.segment_bytes, pin=True)
    shifted = torch.cat([pages.new_zeros(1), pages.flatten()])[1:].view_as(pages)  # 4 bytes off
    for table, layers in ((pages, None), (shifted, (1, 2)), (pages[1:], (0, 1))):
        rig.mover.gather(table, rows, 5, layers)
        rig.mover.scatter(table, first[-len(table) :], rows, 7, layers)
    slots = torch.arange(13, device=rig.device)
    rig.mover.gather_layer(1, slots[1:2], rows, 3)
    rig.mover.scatter_layer(2, slots[1:2], rows, 3)
    host(pages)
    assert n_compiled() == before


@pytest.mark.unit
def test_pages_that_the_engine_does_not_have_never_reach_a_kernel():
    rig = Rig(device="cpu")
    for pages in [(0, 1, N_PAGES), (-1, 0, 1)]:
        with pytest.raises(ValueError, match="not all of the engine's 7"):
            rig.kv.page_table([PageRun(pages)])
    with pytest.raises(ValueError, match="no block"):
        rig.kv.page_table([PageRun((1, 2))])


@pytest.mark.unit
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ or HAS_GPU, reason="Triton is there")
def test_a_mover_without_triton_is_refused_in_one_line():
    from tenuto.errors import ConfigError

    with pytest.raises(ConfigError, match="need Triton") as raised:
        BlockMover(Rig(device="cpu").kv)
    assert "\n" not in str(raised.value)
