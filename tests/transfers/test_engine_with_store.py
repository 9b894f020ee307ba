"""Engine, movers and a store together, when the store is slow or fails."""

import numpy as np
import pytest

from tenuto.errors import Cause
from tenuto.testing.blocks import make_blocks
from tenuto.testing.clock import FakeClock
from tenuto.testing.faults import SlowStore
from tenuto.transfers.engine import TransferEngine
from tenuto.transfers.movers import Movers
from tenuto.transfers.plan import Route, Transfer
from tests.transfers.test_engine import causes
from tests.transfers.test_movers import Rig as MoversRig
from tests.transfers.test_movers import run_of

pytestmark = pytest.mark.unit

BLOCKS = make_blocks(4)
KEYS = tuple(block.key for block in BLOCKS)


class Rig(MoversRig):
    def __init__(self) -> None:
        super().__init__()
        self.slow = SlowStore(self.store)
        self.clock = FakeClock()
        self.movers = Movers(self.arena, self.codec, self.device, self.slow, n_bounce=1)
        self.engine = TransferEngine(self.movers, load_timeout_s=30, max_queued_stores=4, clock=self.clock)

    def results(self) -> dict:
        assert self.engine.drain(30)
        return {result.transfer_id: result for result in self.engine.poll()}


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.slow.let_go()
    assert rig.engine.drain(30)
    rig.engine.close()


def bring_and_load(rig: Rig, n: int = 2) -> list[Transfer]:
    for slot in range(n):
        rig.fill_store(slot, BLOCKS[slot])
    slots, runs = tuple(range(n)), tuple(run_of(number) for number in range(n))
    bring = Transfer(1, Route.DISK_TO_HOST, KEYS[:n], slots, slots)
    return [bring, Transfer(2, Route.HOST_TO_DEVICE, KEYS[:n], slots, pages=runs, after=(1,))]


def test_a_corrupt_disk_block_never_reaches_the_device(rig):
    transfers = bring_and_load(rig)
    rig.memory.flip(1, 4096)
    rig.device.clear()
    rig.engine.submit(transfers)
    results = rig.results()
    assert causes(results[1]) == causes(results[2]) == {1: Cause.CORRUPT}
    assert [rig.on_device(run_of(number)).any() for number in range(2)] == [True, False]


def test_a_read_that_hangs_costs_a_timeout_and_the_device_is_not_touched_when_it_wakes(rig):
    rig.slow.hold("read")
    before = rig.device.pages.copy()
    rig.engine.submit(bring_and_load(rig))
    rig.slow.wait_blocked("read")
    rig.clock.advance(30)
    (late,) = rig.engine.poll()
    assert (late.transfer_id, set(causes(late).values())) == (2, {Cause.TIMEOUT})
    rig.slow.let_go("read")
    assert causes(rig.results()[1]) == {}  # what it brought is good, and stays in host memory
    np.testing.assert_array_equal(rig.device.pages, before)


def test_a_straight_load_given_up_between_two_reads_stops_there(rig):
    for slot in range(2):
        rig.fill_store(slot, BLOCKS[slot])
    rig.device.clear()
    runs = (run_of(0), run_of(1))
    rig.slow.hold("read")
    rig.engine.submit([Transfer(1, Route.DISK_TO_DEVICE, KEYS[:2], (0, 1), pages=runs)])
    rig.slow.wait_blocked("read")
    rig.slow.let_go("read", n=1)
    while not rig.on_device(runs[0]).any():  # the first block is on the device
        rig.engine.poll(0.01)
    rig.slow.wait_blocked("read")
    rig.engine.cancel([1])
    (answer,) = rig.engine.poll()
    assert set(causes(answer).values()) == {Cause.CANCELLED}
    rig.slow.let_go("read")
    rig.engine.close()
    rig.engine._lanes[Route.DISK_TO_DEVICE]._thread.join(30)
    assert not rig.on_device(runs[1]).any()


def test_a_disk_that_hangs_on_writes_refuses_more_and_serves_reads(rig):
    rig.slow.hold("write")
    for slot in range(4):
        rig.fill_host(slot, BLOCKS[slot])
    rig.fill_store(7, BLOCKS[0])
    writes = [Transfer(number, Route.HOST_TO_DISK, KEYS[:1], (0,), (number,)) for number in range(1, 7)]
    rig.engine.submit(writes)
    rig.slow.wait_blocked("write")
    rig.engine.submit([Transfer(9, Route.DISK_TO_HOST, KEYS[:1], (7,), (5,))])
    answers: dict = {}
    while 9 not in answers:
        answers |= {result.transfer_id: result for result in rig.engine.poll(0.01)}
    assert {number: set(causes(answer).values()) for number, answer in answers.items()} == {
        5: {Cause.THROTTLED}, 6: {Cause.THROTTLED}, 9: set(),
    }  # fmt: skip


def test_a_write_is_not_begun_before_its_stage_has_ended(rig):
    stage = Transfer(1, Route.DEVICE_TO_HOST, KEYS[:1], targets=(0,), pages=(run_of(2),), blocks=(BLOCKS[0],))
    rig.engine.submit([stage, Transfer(2, Route.HOST_TO_DISK, KEYS[:1], (0,), (4,), after=(1,))])
    assert not any(result.failures for result in rig.results().values())
    rig.codec.verify(memoryview(rig.memory.stored(4)), BLOCKS[0].key.hash)
