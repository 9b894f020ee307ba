"""The stores that tests use keep a store's promises themselves, and fail or block exactly as told."""

import threading

import pytest

from tenuto.errors import Cause, StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.testing.blocks import NAMESPACE, SMALL
from tenuto.testing.clock import FakeClock
from tenuto.testing.faults import FaultyStore, SlowStore
from tenuto.testing.memory_store import MemoryStore
from tenuto.testing.pacing import PacedStore
from tenuto.testing.store_contract import BLOCKS, Bench, WhileOpenContract
from tenuto.tiers.store import Capacity

pytestmark = pytest.mark.contract


class TestMemoryStore(WhileOpenContract):
    def make_store(self, folder, codec):
        return MemoryStore(codec, 9)


class TestFaultyStoreWithoutFaults(WhileOpenContract):
    def make_store(self, folder, codec):
        return FaultyStore(MemoryStore(codec, 9))


class TestSlowStoreLetGo(WhileOpenContract):
    def make_store(self, folder, codec):
        store = SlowStore(MemoryStore(codec, 9))
        store.hold("read")
        store.let_go("read")
        return store


class TestPacedStore(WhileOpenContract):
    def make_store(self, folder, codec):
        clock = FakeClock()
        return PacedStore(MemoryStore(codec, 9), codec.layout, 1e6, clock, clock.advance)


@pytest.fixture
def memory():
    return MemoryStore(ExtentCodec(SMALL, NAMESPACE), 8)


@pytest.fixture
def faulty(memory):
    return FaultyStore(memory)


@pytest.fixture
def bench(faulty):
    return Bench(faulty, ExtentCodec(SMALL, NAMESPACE))


def blocks(*slots: int) -> dict:
    return {slot: BLOCKS[slot] for slot in slots}


@pytest.mark.parametrize("cause", Cause)
def test_a_faulty_write_fails_with_its_cause_and_stores_nothing(bench, faulty, memory, cause):
    faulty.fail("write", cause, slots=[1, 3])
    failures = bench.write(blocks(0, 1, 2, 3))
    assert [(failure.index, failure.cause) for failure in failures] == [(1, cause), (3, cause)]
    assert memory.slots == [0, 2]


def test_a_faulty_read_fails_beside_real_failures(bench, faulty, memory):
    bench.write(blocks(0, 1, 2))
    memory.flip(2, 5000)
    faulty.fail("read", Cause.TIMEOUT, slots=[0])
    assert bench.read(blocks(0, 1, 2, 3)) == [Cause.TIMEOUT, None, Cause.CORRUPT, Cause.MISSING]


def test_a_fault_ends_after_its_number_of_blocks_or_when_healed(bench, faulty):
    bench.write(blocks(0, 1, 2))
    faulty.fail("read", Cause.IO_ERROR, n_times=2)
    assert bench.read(blocks(0, 1, 2)) == [Cause.IO_ERROR, Cause.IO_ERROR, None]
    faulty.fail("read", Cause.CORRUPT)
    assert bench.read(blocks(0, 1)) == [Cause.CORRUPT, Cause.CORRUPT]
    faulty.heal()
    assert bench.read(blocks(0, 1, 2)) == [None, None, None]


def test_a_faulty_forget_raises(faulty):
    faulty.fail("forget", Cause.IO_ERROR, slots=[2])
    faulty.forget([1])
    with pytest.raises(StoreError) as raised:
        faulty.forget([1, 2])
    assert raised.value.cause is Cause.IO_ERROR


@pytest.mark.parametrize("offset", [0, 40, 4096, 8192])
def test_a_flipped_byte_in_memory_is_corrupt(bench, memory, offset):
    bench.write(blocks(0))
    memory.flip(0, offset)
    assert bench.read(blocks(0)) == [Cause.CORRUPT]


def test_a_memory_store_reads_other_volumes_and_grows(memory, bench):
    other = MemoryStore(ExtentCodec(SMALL, NAMESPACE), 2, is_growing=True)
    assert other.capacity() == Capacity(2, True)
    Bench(other, ExtentCodec(SMALL, NAMESPACE)).write(blocks(1))
    memory.volumes["b"] = other
    assert bench.read(blocks(1), "b") == [None]
    other.grow(5)
    assert other.capacity() == Capacity(5, False)
    assert [failure.cause for failure in Bench(other, bench.codec).write(blocks(4, 5))] == [Cause.IO_ERROR]


def test_a_write_that_a_reset_overtakes_is_not_kept():
    codec = ExtentCodec(SMALL, NAMESPACE)
    memory = MemoryStore(codec, 4)
    codec.seal = lambda buffer: memory.reset(bytes(16), 5)
    Bench(memory, ExtentCodec(SMALL, NAMESPACE)).write(blocks(0))
    assert memory.slots == []
    assert memory.epoch == 5


@pytest.mark.parametrize("op", ["read", "write"])
def test_a_slow_store_blocks_what_it_holds_until_it_is_let_go(memory, op):
    slow = SlowStore(memory)
    bench, done = Bench(slow, ExtentCodec(SMALL, NAMESPACE)), threading.Event()
    bench.write(blocks(0))

    def call():
        getattr(bench, op)(blocks(0, 1))
        done.set()

    slow.hold(op)
    thread = threading.Thread(target=call)
    thread.start()
    slow.wait_blocked(op)
    assert not done.is_set()
    with pytest.raises(TimeoutError, match="1 of 2 calls"):
        slow.wait_blocked(op, n=2, timeout_s=0)
    slow.let_go()
    thread.join()
    assert done.is_set()


def test_a_slow_store_lets_as_many_calls_through_as_it_is_told(memory):
    slow = SlowStore(memory)
    passed = []

    def call(number: int):
        slow.forget([])
        passed.append(number)

    slow.hold("forget")
    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    slow.wait_blocked("forget", n=3)
    slow.let_go("forget", n=2)
    while sum(thread.is_alive() for thread in threads) > 1:
        for thread in threads:
            thread.join(0.01)
    assert len(passed) == 2
    slow.wait_blocked("forget", n=1)
    slow.close()
    for thread in threads:
        thread.join()
    assert len(passed) == 3
