"""Each route moves the right bytes between a device, host memory and a store."""

import contextlib

import numpy as np
import pytest

from tenuto.errors import Cause
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.testing.blocks import NAMESPACE, SMALL, fill_extent, make_blocks, payload_of
from tenuto.testing.device import FakeDevice
from tenuto.testing.faults import FaultyStore
from tenuto.testing.memory_store import MemoryStore
from tenuto.tiers.store import SlotIO
from tenuto.transfers.movers import Movers
from tenuto.transfers.plan import PageRun, Route, Transfer

pytestmark = pytest.mark.unit

BLOCKS = make_blocks(6)
PAGE_TOKENS = 4
N_BOUNCE = 2


class Rig:
    """Host slots 0 to 7 and two to bounce through; a device of 32 pages, four to a block."""

    def __init__(self) -> None:
        self.codec = ExtentCodec(SMALL, NAMESPACE)
        self.arena = HostArena(8 + N_BOUNCE, SMALL.extent_bytes)
        self.device = FakeDevice(self.arena, SMALL, PAGE_TOKENS, n_pages=32)
        self.memory = MemoryStore(self.codec, 8)
        self.store = FaultyStore(self.memory)
        self.movers = Movers(self.arena, self.codec, self.device, self.store, N_BOUNCE)
        self.may_touch = [True] * 100
        self.n_touches = 0

    @contextlib.contextmanager
    def touching(self):
        self.n_touches += 1
        yield self.may_touch.pop(0)

    def move(self, route: Route, blocks, sources=(), targets=(), runs=(), indices=None, volume="") -> dict[int, Cause]:
        keys = tuple(block.key for block in blocks)
        transfer = Transfer(
            1, route, keys, tuple(sources), tuple(targets), tuple(runs), volume,
            blocks=tuple(blocks) if route is Route.DEVICE_TO_HOST else (),
        )  # fmt: skip
        indices = list(range(len(keys))) if indices is None else indices
        if route is Route.DEVICE_TO_HOST:
            self.movers.land(transfer, indices, self.movers.gather(transfer, indices))
            return {}
        failures = self.movers.move(transfer, indices, self.touching, self.movers.mark())
        assert {failure.index for failure in failures} <= set(indices)
        return {failure.index: failure.cause for failure in failures}

    def fill_host(self, slot: int, block) -> None:
        fill_extent(self.codec, self.arena.slot(slot), block)

    def fill_store(self, slot: int, block, store: MemoryStore | None = None) -> None:
        buffer = HostArena(1, SMALL.extent_bytes).slot(0)
        fill_extent(self.codec, buffer, block)
        assert (store or self.memory).write([SlotIO(slot, block.key, buffer)]) == []

    def host_payload(self, slot: int) -> bytes:
        return bytes(self.arena.slot(slot)[SMALL.header_bytes :])

    def on_device(self, run: PageRun) -> np.ndarray:
        """[layer][head][k, v][token][bytes] of a block, put together from its pages."""
        return np.concatenate([self.device.pages[page] for page in run.pages], axis=3)


def canonical(payload: bytes) -> np.ndarray:
    """The runs of a payload in the same shape."""
    layers = np.frombuffer(payload, np.uint8).reshape(SMALL.n_layers, -1)[:, : SMALL.n_heads * SMALL.run_bytes]
    return layers.reshape(SMALL.n_layers, SMALL.n_heads, 2, SMALL.block_tokens, -1)


def run_of(number: int, first: int = 0) -> PageRun:
    """Four pages that do not lie in a row."""
    return PageRun(tuple((4 * number + at) * 5 % 32 for at in range(4)), first)


@pytest.fixture
def rig():
    return Rig()


def test_device_to_host_writes_header_and_payload_of_each_block(rig):
    runs = [run_of(2), run_of(0)]
    assert rig.move(Route.DEVICE_TO_HOST, BLOCKS[:2], targets=(5, 1), runs=runs) == {}
    for slot, block, run in zip((5, 1), BLOCKS, runs, strict=False):
        assert rig.codec.read_block(rig.arena.slot(slot)) == block
        np.testing.assert_array_equal(canonical(rig.host_payload(slot)), rig.on_device(run))
        assert bytes(rig.arena.slot(slot)[16:24]) == bytes(8)  # sealed when it leaves host memory
    assert rig.n_touches == 0


def test_host_to_device_puts_each_block_on_its_pages(rig):
    rig.fill_host(3, BLOCKS[0])
    rig.fill_host(6, BLOCKS[1])
    rig.device.clear()
    runs = [run_of(1), run_of(4, first=2)]
    assert rig.move(Route.HOST_TO_DEVICE, BLOCKS[:2], sources=(3, 6), runs=runs) == {}
    whole, part = (canonical(payload_of(SMALL, block)) for block in BLOCKS[:2])
    np.testing.assert_array_equal(rig.on_device(runs[0]), whole)
    np.testing.assert_array_equal(rig.on_device(runs[1])[..., 8:, :], part[..., 8:, :])
    assert not rig.on_device(runs[1])[..., :8, :].any()


def test_host_to_disk_stores_sealed_extents_and_disk_to_host_brings_them_back(rig):
    rig.fill_host(0, BLOCKS[0])
    rig.fill_host(1, BLOCKS[1])
    assert rig.move(Route.HOST_TO_DISK, BLOCKS[:2], sources=(0, 1), targets=(7, 2)) == {}
    assert rig.memory.slots == [2, 7]
    rig.codec.verify(memoryview(rig.memory.stored(7)), BLOCKS[0].key.hash)
    assert rig.move(Route.DISK_TO_HOST, BLOCKS[:2], sources=(7, 2), targets=(4, 5)) == {}
    assert [rig.host_payload(slot) for slot in (4, 5)] == [payload_of(SMALL, block) for block in BLOCKS[:2]]


@pytest.mark.parametrize("n_blocks", [1, 2, 3, 5])
def test_disk_to_device_goes_through_the_bounce_slots_however_many_blocks(rig, n_blocks):
    for slot, block in enumerate(BLOCKS[:n_blocks]):
        rig.fill_store(slot, block)
    rig.device.clear()
    before = bytes(rig.arena.view[: 8 * SMALL.extent_bytes])
    runs = [run_of(number) for number in range(n_blocks)]
    assert rig.move(Route.DISK_TO_DEVICE, BLOCKS[:n_blocks], sources=range(n_blocks), runs=runs) == {}
    for run, block in zip(runs, BLOCKS, strict=False):
        np.testing.assert_array_equal(rig.on_device(run), canonical(payload_of(SMALL, block)))
    assert bytes(rig.arena.view[: 8 * SMALL.extent_bytes]) == before  # the pool's slots are not ours
    assert rig.n_touches == -(-n_blocks // N_BOUNCE)


@pytest.mark.parametrize("route", [Route.HOST_TO_DEVICE, Route.HOST_TO_DISK])
def test_a_host_slot_of_another_block_is_corrupt_and_not_moved(rig, route):
    for slot, block in enumerate([BLOCKS[0], BLOCKS[5], BLOCKS[2]]):
        rig.fill_host(slot, block)
    rig.device.clear()
    runs = [run_of(number) for number in range(3)] if route is Route.HOST_TO_DEVICE else ()
    assert rig.move(route, BLOCKS[:3], (0, 1, 2), (0, 1, 2), runs) == {1: Cause.CORRUPT}
    if route is Route.HOST_TO_DISK:
        assert rig.memory.slots == [0, 2]
    else:
        assert [rig.on_device(run).any() for run in runs] == [True, False, True]


def test_a_disk_slot_of_another_block_is_corrupt_and_costs_no_other(rig):
    for slot, block in enumerate([BLOCKS[0], BLOCKS[5], BLOCKS[2]]):
        rig.fill_store(slot, block)
    assert rig.move(Route.DISK_TO_HOST, BLOCKS[:3], (0, 1, 2), (0, 1, 2)) == {1: Cause.CORRUPT}
    assert [rig.host_payload(slot) for slot in (0, 2)] == [payload_of(SMALL, BLOCKS[i]) for i in (0, 2)]


def test_failed_reads_keep_their_index_on_the_straight_way(rig):
    for slot, block in enumerate(BLOCKS[:5]):
        rig.fill_store(slot, block)
    rig.store.fail("read", Cause.IO_ERROR, slots=[1, 2])
    rig.memory.flip(4, 5000)
    rig.device.clear()
    runs = [run_of(number) for number in range(5)]
    failures = rig.move(Route.DISK_TO_DEVICE, BLOCKS[:5], range(5), runs=runs)
    assert failures == {1: Cause.IO_ERROR, 2: Cause.IO_ERROR, 4: Cause.CORRUPT}
    for number, run in enumerate(runs):
        expected = canonical(payload_of(SMALL, BLOCKS[number])) if number in (0, 3) else 0
        np.testing.assert_array_equal(rig.on_device(run), np.broadcast_to(expected, rig.on_device(run).shape))


@pytest.mark.parametrize(("route", "op"), [(Route.HOST_TO_DISK, "write"), (Route.DISK_TO_HOST, "read")])
def test_only_the_blocks_asked_for_are_moved_and_failures_keep_their_index(rig, route, op):
    for slot, block in enumerate(BLOCKS[:4]):
        rig.fill_host(slot, block)
        if op == "read":
            rig.fill_store(slot, block)
    rig.store.fail(op, Cause.NO_SPACE, slots=[3])
    targets = (0, 1, 2, 3) if op == "write" else (4, 5, 6, 7)
    assert rig.move(route, BLOCKS[:4], (0, 1, 2, 3), targets, indices=[1, 3]) == {3: Cause.NO_SPACE}
    if op == "write":
        assert rig.memory.slots == [1]
    else:
        assert [slot for slot in targets if any(rig.host_payload(slot))] == [5]


def test_a_load_that_may_not_touch_the_device_leaves_it_alone(rig):
    rig.fill_host(0, BLOCKS[0])
    before = rig.device.pages.copy()
    rig.may_touch = [False]
    assert rig.move(Route.HOST_TO_DEVICE, BLOCKS[:1], (0,), runs=[run_of(0)]) == {0: Cause.CANCELLED}
    np.testing.assert_array_equal(rig.device.pages, before)


def test_a_straight_load_given_up_midway_touches_nothing_from_then_on(rig):
    for slot, block in enumerate(BLOCKS[:4]):
        rig.fill_store(slot, block)
    rig.device.clear()
    rig.may_touch = [True, False]
    runs = [run_of(number) for number in range(4)]
    assert rig.move(Route.DISK_TO_DEVICE, BLOCKS[:4], range(4), runs=runs) == {2: Cause.CANCELLED, 3: Cause.CANCELLED}
    assert [rig.on_device(run).any() for run in runs] == [True, True, False, False]


def test_another_engines_volume_is_read_from_there(rig):
    other = MemoryStore(rig.codec, 4)
    rig.fill_store(3, BLOCKS[0], other)
    rig.memory.volumes["b"] = other
    assert rig.move(Route.DISK_TO_HOST, BLOCKS[:1], (3,), (0,), volume="b") == {}
    assert rig.host_payload(0) == payload_of(SMALL, BLOCKS[0])
    assert rig.move(Route.DISK_TO_HOST, BLOCKS[:1], (3,), (0,)) == {0: Cause.MISSING}


@pytest.mark.parametrize("route", [Route.HOST_TO_DISK, Route.DISK_TO_HOST, Route.DISK_TO_DEVICE])
def test_a_worker_without_a_disk_says_so(rig, route):
    movers = Movers(rig.arena, rig.codec, rig.device, None, N_BOUNCE)
    rig.fill_host(0, BLOCKS[0])
    transfer = Transfer(1, route, (BLOCKS[0].key,), (0,), (0,), (run_of(0),))
    with pytest.raises(RuntimeError, match="does not have"):
        movers.move(transfer, [0], rig.touching, None)


def test_a_whole_life_device_host_disk_host_device(rig):
    run, other = run_of(3), run_of(6)
    expected = rig.on_device(run).copy()
    assert rig.move(Route.DEVICE_TO_HOST, BLOCKS[1:2], targets=(2,), runs=[run]) == {}
    assert rig.move(Route.HOST_TO_DISK, BLOCKS[1:2], (2,), (0,)) == {}
    rig.arena.slot(2)[:] = bytes(SMALL.extent_bytes)
    assert rig.move(Route.DISK_TO_HOST, BLOCKS[1:2], (0,), (7,)) == {}
    rig.device.clear()
    assert rig.move(Route.HOST_TO_DEVICE, BLOCKS[1:2], (7,), runs=[other]) == {}
    np.testing.assert_array_equal(rig.on_device(other), expected)


def test_a_stage_after_a_reset_is_of_the_new_namespace(rig):
    rig.movers.codec = ExtentCodec(SMALL, bytes(16))
    rig.move(Route.DEVICE_TO_HOST, BLOCKS[:1], targets=(0,), runs=[run_of(0)])
    assert bytes(rig.arena.slot(0)[24:40]) == bytes(16)
