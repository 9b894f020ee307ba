"""A paced store takes the time that its bytes take at its rate, and moves them as the store below does."""

import threading

import pytest

from tenuto.errors import Cause
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.testing.blocks import NAMESPACE, SMALL, fill_extent, make_blocks
from tenuto.testing.clock import FakeClock
from tenuto.testing.faults import FaultyStore
from tenuto.testing.memory_store import MemoryStore
from tenuto.testing.pacing import PacedStore
from tenuto.tiers.store import SlotIO

pytestmark = pytest.mark.unit

BYTES_S = float(SMALL.segment_bytes)
"""A layer of a block a second."""
HEADER_S = SMALL.header_bytes / BYTES_S
BLOCKS = make_blocks(3)


class Rig:
    """A memory store below, and a clock that sleeping moves."""

    def __init__(self, wrap=lambda store: store):
        self.clock = FakeClock()
        self.codec = ExtentCodec(SMALL, NAMESPACE)
        self.arena = HostArena(3, SMALL.extent_bytes)
        self.memory = MemoryStore(self.codec, 8)
        self.below = wrap(self.memory)
        self.slept = []
        self.store = PacedStore(self.below, SMALL, BYTES_S, self.clock, self._sleep)
        self.items = [SlotIO(slot, block.key, self.arena.slot(slot)) for slot, block in enumerate(BLOCKS)]
        for item, block in zip(self.items, BLOCKS, strict=True):
            fill_extent(self.codec, item.buffer, block)

    def _sleep(self, seconds):
        self.slept.append(seconds)
        self.clock.advance(seconds)

    def took_s(self, do):
        began = self.clock()
        assert do() == []
        return self.clock() - began


def test_what_moves_takes_its_bytes_over_the_rate():
    rig = Rig()
    both, whole_s = rig.items[:2], HEADER_S + SMALL.n_layers
    assert rig.took_s(lambda: rig.store.write(both)) == pytest.approx(2 * whole_s)
    assert rig.took_s(lambda: rig.store.read(both)) == pytest.approx(2 * whole_s)
    assert rig.took_s(lambda: rig.store.read(both, layers=(0, 1))) == pytest.approx(2 * (1 + HEADER_S))
    assert rig.took_s(lambda: rig.store.read(both, layers=(1, 2))) == pytest.approx(2)
    third = rig.items[2:]
    assert rig.took_s(lambda: rig.store.write_layers(third, (0, 2))) == pytest.approx(2)
    assert rig.took_s(lambda: rig.store.commit(third)) == pytest.approx(HEADER_S)
    assert rig.memory.slots == [0, 1, 2]


def test_time_in_which_nobody_asked_is_not_saved_up():
    rig = Rig()
    rig.store.write(rig.items)
    rig.clock.advance(1000.0)
    assert rig.took_s(lambda: rig.store.read(rig.items[:1], layers=(1, 2))) == pytest.approx(1)


def test_calls_at_once_share_the_rate():
    rig = Rig()
    rig.store.write(rig.items)
    slept = []
    store = PacedStore(rig.memory, SMALL, BYTES_S, rig.clock, slept.append)  # nobody's time passes
    threads = [
        threading.Thread(target=lambda item=item: store.read([item], layers=(1, 2))) for item in rig.items
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert sorted(slept) == pytest.approx([1, 2, 3])


def test_a_store_that_is_slower_than_the_rate_is_not_slowed_further():
    class Slower(MemoryStore):
        def read(self, items, volume="", layers=None):
            rig.clock.advance(100.0)
            return super().read(items, volume, layers)

    rig = Rig()
    rig.store.write(rig.items)
    rig.slept.clear()
    rig.store.store = Slower(rig.codec, 8)
    rig.store.store.write(rig.items)
    assert rig.took_s(lambda: rig.store.read(rig.items)) == pytest.approx(100.0)
    assert rig.slept == []


def test_failures_forgetting_and_the_end_go_through():
    rig = Rig(FaultyStore)
    rig.store.write(rig.items)
    rig.below.fail("read", Cause.IO_ERROR, slots=[1])
    assert [(failure.index, failure.cause) for failure in rig.store.read(rig.items)] == [(1, Cause.IO_ERROR)]
    rig.store.forget([0])
    assert rig.memory.slots == [1, 2]
    assert rig.store.capacity() == rig.memory.capacity()
    rig.store.reset(bytes(16), 7)
    assert (rig.memory.slots, rig.memory.epoch) == ([], 7)
    rig.store.close()
