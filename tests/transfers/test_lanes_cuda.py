"""The lanes of a GPU: right bytes through rings and batches, in the order that events make. Needs one."""

import random

import pytest
import torch

from tenuto.errors import ConfigError
from tenuto.memory.driver import CudaDriver
from tenuto.memory.formats import KNOWN_FORMATS
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.memory.paged import PagedKV
from tenuto.memory.pages import PageRun
from tenuto.memory.pinning import pinned_arena
from tenuto.transfers.lanes.cuda import CudaDevice, RingSizes

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

N_BLOCKS, PAGE_TOKENS = 40, 16
LAYOUT = ExtentLayout(64, (0, 4), (0, 2), 64, 64, Dtype.BFLOAT16)
RING = RingSizes(3 * 256 << 10, 3 * 256 << 10, 256 << 10, 4, 4)
WHOLE_BLOCKS = ExtentLayout(256, (0, 32), (0, 1), 128, 128, Dtype.BFLOAT16)


class Rig:
    """An engine of packed pages, all of them random, and host slots for as many blocks."""

    def __init__(self, layout: ExtentLayout = LAYOUT, page_tokens: int = PAGE_TOKENS) -> None:
        per_block = layout.block_tokens // page_tokens
        n_pages = N_BLOCKS * per_block
        generator = torch.Generator("cuda").manual_seed(1)
        if layout is LAYOUT:
            shape = (n_pages, layout.n_heads, page_tokens, 2 * layout.k_dim)
            self.tensors = [self._random(shape, generator) for _ in range(layout.n_layers)]
            form = KNOWN_FORMATS["NL_X_NB_NH_BS_CS"]
        else:
            shape = (n_pages, layout.n_layers, 2, layout.n_heads, page_tokens, layout.k_dim)
            self.tensors = [self._random(shape, generator)]
            form = KNOWN_FORMATS["NB_NL_TWO_NH_BS_HS"]
        self.kv = PagedKV(self.tensors, layout, page_tokens, form)
        self.arena = pinned_arena(N_BLOCKS, layout.extent_bytes, CudaDriver())
        self.device = CudaDevice(self.kv, self.arena, RING, CudaDriver())
        pages = random.Random(2).sample(range(n_pages), n_pages)
        self.runs = [PageRun(tuple(pages[at : at + per_block])) for at in range(0, n_pages, per_block)]
        self.slots = random.Random(3).sample(range(N_BLOCKS), N_BLOCKS)

    @staticmethod
    def _random(shape, generator) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)

    def copies(self) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in self.tensors]

    def overwrite(self) -> None:
        for tensor in self.tensors:
            tensor.fill_(-1.0)

    def equals(self, others) -> bool:
        return all(torch.equal(one, other) for one, other in zip(self.tensors, others, strict=True))

    def equals_in(self, runs, others) -> bool:
        """Whether these blocks are the same in both."""
        pages = [page for run in runs for page in run.pages]
        return all(torch.equal(one[pages], other[pages]) for one, other in zip(self.tensors, others, strict=True))


@pytest.fixture(params=["ring", "batch"])
def rig(request):
    rig = Rig() if request.param == "ring" else Rig(WHOLE_BLOCKS, 256)
    yield rig
    torch.cuda.synchronize()
    rig.arena.close()


def busy(milliseconds: float) -> None:
    """Keep the engine's stream busy."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def test_what_was_stored_comes_back_bit_for_bit(rig):
    before = rig.copies()
    rig.device.gather(rig.runs, rig.slots).wait()
    rig.overwrite()
    rig.device.scatter(rig.runs, rig.slots, rig.device.mark()).wait()
    assert rig.equals(before)


def test_a_gather_comes_after_what_the_engine_has_queued_and_does_not_wait_for_it(rig):
    busy(200)
    rig.overwrite()
    landing = rig.device.gather(rig.runs, rig.slots)
    assert not landing.has_ended
    landing.wait()
    expected = rig.copies()
    for tensor in rig.tensors:
        tensor.zero_()
    rig.device.scatter(rig.runs, rig.slots, rig.device.mark()).wait()
    assert rig.equals(expected)


def test_what_the_engine_queues_after_settling_does_not_overtake_the_reading(rig):
    before = rig.copies()
    busy(50)
    landing = rig.device.gather(rig.runs, rig.slots)
    rig.device.settle()
    rig.overwrite()
    landing.wait()
    rig.device.scatter(rig.runs, rig.slots, rig.device.mark()).wait()
    assert rig.equals(before)


def test_a_scatter_comes_after_its_mark(rig):
    before = rig.copies()
    rig.device.gather(rig.runs, rig.slots).wait()
    busy(50)
    rig.overwrite()
    rig.device.scatter(rig.runs, rig.slots, rig.device.mark()).wait()
    assert rig.equals(before)


def test_a_scatter_comes_after_gathers_from_the_same_pages(rig):
    half = N_BLOCKS // 2
    rig.device.gather(rig.runs[:half], rig.slots[:half]).wait()
    first = rig.copies()
    rig.overwrite()
    busy(20)
    landing = rig.device.gather(rig.runs[:half], rig.slots[half:])
    rig.device.scatter(rig.runs[:half], rig.slots[:half], rig.device.mark()).wait()
    assert rig.equals_in(rig.runs[:half], first)
    landing.wait()
    rig.device.scatter(rig.runs[:half], rig.slots[half:], rig.device.mark()).wait()
    assert rig.equals_in(rig.runs[:half], [torch.full_like(tensor, -1.0) for tensor in rig.tensors])


def test_layers_come_one_by_one_and_what_is_fenced_by_one_finds_it(rig):
    before, n_layers = rig.copies(), rig.kv.layout.n_layers
    busy(20)
    landings = [rig.device.gather(rig.runs, rig.slots, (layer, layer + 1)) for layer in range(n_layers)]
    rig.device.settle()
    rig.overwrite()
    for landing in landings:
        landing.wait()
    mark = rig.device.mark()
    loads = [rig.device.scatter(rig.runs, rig.slots, mark, (layer, layer + 1)) for layer in range(n_layers)]
    for load in loads:
        load.fence()
    found = rig.copies()  # queued behind the fences, without a wait
    assert all(torch.equal(one, other) for one, other in zip(found, before, strict=True))
    for load in loads:
        load.wait()


def test_pages_before_the_first_are_left_alone():
    rig = Rig()
    before = rig.copies()
    rig.device.gather(rig.runs, rig.slots).wait()
    rig.overwrite()
    part = [PageRun(run.pages, 3) for run in rig.runs]
    rig.device.scatter(part, rig.slots, rig.device.mark()).wait()
    for run in rig.runs:
        for at, page in enumerate(run.pages):
            for tensor, old in zip(rig.tensors, before, strict=True):
                expected = old[page] if at >= 3 else torch.full_like(old[page], -1.0)
                assert torch.equal(tensor[page], expected)
    rig.arena.close()


def test_a_ring_larger_than_the_memory_that_is_free_is_refused_with_its_setting():
    rig = Rig()
    _, total = torch.cuda.mem_get_info()
    with pytest.raises(ConfigError, match=r"^tiers\.device\.load_ring: .* give less"):
        CudaDevice(rig.kv, rig.arena, RingSizes(2 * total, 1 << 20, 1 << 20, 4, 4), CudaDriver())
    rig.arena.close()
