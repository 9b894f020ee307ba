"""The order of streams: whatever a GPU does first of what it may, bytes are right; and each rule is needed for that."""

import pytest
import torch

from tenuto.memory.arena import HostArena
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.memory.paged import PagedKV
from tenuto.memory.pages import PageRun
from tenuto.transfers.lanes import cuda, ring
from tenuto.transfers.lanes.cuda import CudaDevice, RingSizes
from tests.transfers.fake_cuda import Gpu

pytestmark = pytest.mark.unit

LAYOUT = ExtentLayout(64, (0, 2), (0, 2), 32, 32, Dtype.BYTES)
PAYLOAD = LAYOUT.payload_bytes
RING = RingSizes(2 * 2 * PAYLOAD, 2 * 2 * PAYLOAD, 2 * PAYLOAD, 1, 1)  # two windows of two blocks
N_BLOCKS, N_SLOTS, PER_BLOCK = 14, 14, 4

RULES = {
    "a gather comes after the computing it stores": ("gathering", "compute"),
    "a window is filled again when it was copied out": ("gathering", "copying_out"),
    "a window is copied out when it was filled": ("copying_out", "gathering"),
    "computing comes after the gathers before it": ("compute", "gathering"),
    "a scatter comes after its mark": ("scattering", "compute"),
    "a window is put into pages when it was copied in": ("scattering", "copying_in"),
    "a window is copied in again when it was put into pages": ("copying_in", "scattering"),
}


class Engine:
    """Computes, stores and loads at random, as a leader lets it; every byte is compared."""

    def __init__(self, monkeypatch, seed, forgotten=()):
        self.gpu = gpu = Gpu(seed, forgotten)
        self.rng = gpu.rng
        monkeypatch.setattr(cuda, "torch", gpu.torch)
        monkeypatch.setattr(ring, "torch", gpu.torch)
        monkeypatch.setattr(cuda, "BlockMover", gpu.mover)
        shape = (N_BLOCKS * PER_BLOCK, LAYOUT.n_heads, 16, 64)
        self.tensors = [torch.zeros(shape, dtype=torch.uint8) for _ in range(LAYOUT.n_layers)]
        self.arena = HostArena(N_SLOTS, LAYOUT.extent_bytes)
        self.device = CudaDevice(PagedKV(self.tensors, LAYOUT, 16), self.arena, RING, gpu)
        pages = self.rng.sample(range(N_BLOCKS * PER_BLOCK), N_BLOCKS * PER_BLOCK)
        self.runs = [PageRun(tuple(pages[at : at + PER_BLOCK])) for at in range(0, len(pages), PER_BLOCK)]
        self.values = [0] * N_BLOCKS  # what the engine's blocks hold when all that is queued has run
        self.slots = dict.fromkeys(range(N_SLOTS), 0)  # what host slots hold that nobody writes
        self.flying = []  # (landing, {slot: value})

    def compute(self):
        """A step: it overwrites some blocks."""
        self.device.settle()
        for block in self.rng.sample(range(N_BLOCKS), self.rng.randint(1, 6)):
            value = self.values[block] = self.rng.randrange(1, 255)
            self.gpu.compute.put(lambda run=self.runs[block], value=value: self._fill(run, value))

    def _fill(self, run, value):
        for tensor in self.tensors:
            tensor[list(run.pages)] = value

    def store(self):
        free = self.rng.sample(sorted(self.slots), min(len(self.slots), self.rng.randint(1, 8)))
        blocks = self.rng.sample(range(N_BLOCKS), len(free))
        landing = self.device.gather([self.runs[block] for block in blocks], free)
        for slot in free:
            del self.slots[slot]
        self.flying.append((landing, {slot: self.values[block] for slot, block in zip(free, blocks, strict=True)}))

    def land(self):
        if not self.flying:
            return
        landing, stored = self.flying.pop(0)
        landing.wait()
        for slot, value in stored.items():
            assert set(self.arena.slot(slot)[LAYOUT.header_bytes :]) == {value}, f"slot {slot} is not all {value}"
        self.slots |= stored

    def load(self):
        known = [slot for slot, value in self.slots.items() if value]
        slots = self.rng.sample(known, min(len(known), self.rng.randint(1, 8)))
        blocks = self.rng.sample(range(N_BLOCKS), len(slots))
        self.device.scatter([self.runs[block] for block in blocks], slots, self.device.mark())
        for block, slot in zip(blocks, slots, strict=True):
            value = self.values[block] = self.slots[slot]
            for tensor in self.tensors:
                assert (tensor[list(self.runs[block].pages)] == value).all(), f"block {block} is not all {value}"

    def live(self, n_steps):
        for _ in range(n_steps):
            self.rng.choice([self.compute, self.compute, self.store, self.store, self.land, self.load])()
            self.gpu.run_some()
        while self.flying:
            self.land()


@pytest.mark.parametrize("seed", range(25))
def test_every_stored_and_loaded_byte_is_right_in_any_legal_order(monkeypatch, seed):
    Engine(monkeypatch, seed).live(60)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(monkeypatch, rule):
    def is_wrong(seed):
        try:
            Engine(monkeypatch, seed, [RULES[rule]]).live(60)
        except AssertionError:
            return True
        return False

    assert any(is_wrong(seed) for seed in range(25)), f"nothing was wrong without: {rule}"


def test_a_copy_that_fails_halfway_leaves_nothing_running(monkeypatch):
    engine = Engine(monkeypatch, 1)
    engine.compute()
    calls = []

    def fail(*args):
        if calls:
            raise RuntimeError("the driver")
        calls.append(args)
        Gpu.copy(engine.gpu, *args)

    engine.gpu.copy = fail
    for move in (
        lambda: engine.device.gather(engine.runs[:6], list(range(6))),
        lambda: engine.device.scatter(engine.runs[:6], list(range(6)), engine.device.mark()),
    ):
        calls.clear()
        with pytest.raises(RuntimeError, match="the driver"):
            move()
        assert not any(stream.queue for stream in engine.gpu.streams if stream.name.startswith("copying"))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", ["gather", "scatter"])
def test_a_kernel_whose_launch_fails_after_all_has_its_window_to_itself(monkeypatch, seed, kernel):
    """The driver may report an error of something else; the next load may come from another thread at once."""
    engine = Engine(monkeypatch, seed)
    device, runs = engine.device, engine.runs
    engine.compute()
    device.gather(runs, list(range(N_SLOTS))).wait()
    stored = list(engine.values)
    mover = device._way._mover
    launch = getattr(mover, kernel)
    moves = {
        "gather": lambda block: device.gather(runs[block : block + 1], [block]),
        "scatter": lambda block: device._way.scatter(
            runs[block : block + 1], [block], device.mark(), cuda.torch.cuda.Event()
        ),
    }

    def fail(*args):
        launch(*args)
        raise RuntimeError("launched all the same")

    for turn in range(4):
        setattr(mover, kernel, fail)
        with pytest.raises(RuntimeError, match="all the same"):
            moves[kernel](turn)
        setattr(mover, kernel, launch)
        device.scatter(runs[6:], list(range(6, N_BLOCKS)), device.mark())
    while any(stream.can_run for stream in engine.gpu.streams):
        engine.gpu.step()
    for block in range(N_BLOCKS):
        for tensor in engine.tensors:
            assert (tensor[list(runs[block].pages)] == stored[block]).all()
