"""Engine pages to extents and back, bit by bit, in every arrangement of the engine's memory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.errors import UnsupportedModelError
from tenuto.memory.arena import HostArena
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.memory.paged import ArenaView, PagedKV
from tenuto.memory.pages import PageRun
from tests.memory.paged_fixtures import (
    ARRANGEMENTS,
    DIM,
    N_HEADS,
    N_LAYERS,
    N_PAGES,
    PAGE_TOKENS,
    PAGES_PER_BLOCK,
    bits,
    canonical,
    layout_of,
    payload,
    separate,
    stacked,
    uneven,
)

pytestmark = pytest.mark.unit

N_SLOTS = 4
tables = st.permutations(range(N_PAGES)).map(
    lambda pages: [tuple(pages[at : at + PAGES_PER_BLOCK]) for at in range(0, 9, PAGES_PER_BLOCK)]
)


class Rig:
    """An engine's tensors, an arena, and what moves between them."""

    def __init__(self, arrange, dtype: Dtype, seed: int = 0) -> None:
        self.layout = layout_of(dtype)
        self.tensors = arrange(dtype, seed)
        self.arena = HostArena(N_SLOTS, self.layout.extent_bytes)
        self.view = ArenaView(self.arena, self.layout, self.tensors[0].dtype)
        self.paged = PagedKV(self.tensors, self.layout, PAGE_TOKENS)

    def snapshot(self) -> list[np.ndarray]:
        return [bits(tensor).copy() for tensor in self.tensors]

    def clear(self) -> None:
        for tensor in self.tensors:
            tensor.copy_(torch.zeros_like(tensor))


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("arrange", ARRANGEMENTS)
@settings(max_examples=5)
@given(tables, st.permutations(range(N_SLOTS)), st.integers(0, 99))
def test_a_gathered_block_is_the_canonical_payload_and_scatters_back_bit_for_bit(arrange, dtype, table, slots, seed):
    rig = Rig(arrange, dtype, seed)
    runs = [PageRun(pages) for pages in table]
    before = rig.snapshot()
    rig.paged.gather(runs, rig.view, slots[:3])
    for run, slot in zip(runs, slots, strict=False):
        np.testing.assert_array_equal(payload(rig.arena.slot(slot), rig.layout), canonical(rig.tensors, run.pages))
    rig.clear()
    rig.paged.scatter(runs, rig.view, slots[:3])
    used = [page for pages in table for page in pages]
    for after, old in zip(rig.snapshot(), before, strict=True):
        np.testing.assert_array_equal(after[used], old[used])
        assert not np.delete(after, used, axis=0).any()


@pytest.mark.parametrize("arrange", ARRANGEMENTS)
def test_a_gather_changes_neither_pages_nor_headers_nor_other_slots(arrange):
    rig = Rig(arrange, Dtype.BFLOAT16)
    rig.arena.view[:] = b"\x5a" * len(rig.arena.view)
    before = rig.snapshot()
    rig.paged.gather([PageRun((4, 0, 9))], rig.view, [2])
    assert all((after == old).all() for after, old in zip(rig.snapshot(), before, strict=True))
    untouched = [rig.arena.slot(2)[: rig.layout.header_bytes], *(rig.arena.slot(slot) for slot in (0, 1, 3))]
    assert all(set(bytes(part)) == {0x5A} for part in untouched)


@pytest.mark.parametrize("first", range(PAGES_PER_BLOCK + 1))
@pytest.mark.parametrize("arrange", [separate, stacked])
def test_a_load_leaves_the_pages_before_its_first_alone(arrange, first):
    rig = Rig(arrange, Dtype.FLOAT16)
    pages = (7, 3, 5)
    before = rig.snapshot()
    rig.paged.gather([PageRun(pages)], rig.view, [1])
    rig.clear()
    rig.paged.scatter([PageRun(pages, first)], rig.view, [1])
    for after, old in zip(rig.snapshot(), before, strict=True):
        np.testing.assert_array_equal(after[list(pages[first:])], old[list(pages[first:])])
        assert not after[list(pages[:first])].any()


def test_the_same_bytes_load_into_an_engine_of_another_arrangement():
    one, other = Rig(stacked, Dtype.BFLOAT16, seed=1), Rig(uneven, Dtype.BFLOAT16, seed=2)
    one.paged.gather([PageRun((1, 2, 3))], one.view, [0])
    other.arena.slot(3)[:] = one.arena.slot(0)
    other.paged.scatter([PageRun((9, 8, 10))], other.view, [3])
    np.testing.assert_array_equal(canonical(other.tensors, (9, 8, 10)), canonical(one.tensors, (1, 2, 3)))


def test_layers_at_regular_distances_move_as_one():
    assert len(Rig(stacked, Dtype.BFLOAT16).paged._stacks) == 1
    assert len(Rig(uneven, Dtype.BFLOAT16).paged._stacks) == N_LAYERS


def test_one_layer_is_enough():
    layout = ExtentLayout(PAGE_TOKENS, (0, 1), (0, N_HEADS), DIM, DIM, Dtype.FLOAT16)
    tensors = separate(Dtype.FLOAT16, 0)[:1]
    arena = HostArena(1, layout.extent_bytes)
    PagedKV(tensors, layout, PAGE_TOKENS).gather([PageRun((6,))], ArenaView(arena, layout, torch.float16), [0])
    np.testing.assert_array_equal(payload(arena.slot(0), layout), canonical(tensors, (6,)))


def tensors_of(*shape: int, dtype: torch.dtype = torch.bfloat16, n: int = N_LAYERS) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=dtype) for _ in range(n)]


GOOD = (N_PAGES, N_HEADS, PAGE_TOKENS, 2 * DIM)


@pytest.mark.parametrize(
    ("tensors", "what"),
    [
        (tensors_of(*GOOD[:3], DIM), "is not supported yet"),
        (tensors_of(N_PAGES, N_HEADS + 1, PAGE_TOKENS, 2 * DIM), "is not supported yet"),
        (tensors_of(*GOOD)[:-1] + tensors_of(*GOOD[:3], DIM, n=1), "is not supported yet"),
        (tensors_of(*GOOD, n=N_LAYERS - 1), "2 tensors of shape"),
        (tensors_of(*GOOD, dtype=torch.float16), "float16"),
        (tensors_of(*GOOD)[:-1] + tensors_of(*GOOD, dtype=torch.float16, n=1), "float16"),
        (tensors_of(*GOOD, dtype=torch.float64), "float64"),
        ([], "0 tensors"),
    ],
    ids=["K only", "heads", "odd layer", "layers", "dtype", "odd dtype", "float64", "none"],
)
def test_memory_that_is_not_understood_is_refused_in_one_line(tensors, what):
    with pytest.raises(UnsupportedModelError, match=what) as raised:
        PagedKV(tensors, layout_of(Dtype.BFLOAT16), PAGE_TOKENS)
    assert "\n" not in str(raised.value)


def test_k_and_v_of_different_sizes_are_refused():
    layout = ExtentLayout(12, (0, N_LAYERS), (0, N_HEADS), 12, 4, Dtype.BFLOAT16)
    with pytest.raises(UnsupportedModelError, match="K dim 12 and V dim 4"):
        PagedKV(tensors_of(*GOOD), layout, PAGE_TOKENS)
