"""A worker's layered loads: what failed, and what was computed on top of it."""

import pytest

from tenuto.config import Runtime
from tenuto.connectors.session.layers import LayeredWork
from tenuto.errors import Cause
from tenuto.testing.blocks import make_blocks
from tenuto.testing.faults import SlowStore
from tenuto.tokens import BlockHash, BlockKey
from tenuto.transfers.engine import TransferEngine
from tenuto.transfers.lanes import LANDED
from tenuto.transfers.plan import Route, Transfer
from tests.transfers.test_layered import N_LAYERS, load_of, read_of
from tests.transfers.test_layered_gathers import Flying
from tests.transfers.test_movers import Rig, run_of

pytestmark = pytest.mark.unit

BLOCKS = make_blocks(6)


class Work:
    """Over a rig, with the lanes that a worker has."""

    def __init__(self, *, may_fail=True, timeout_s=30.0):
        self.rig = Rig()
        self.slow = self.rig.movers.parts.store = SlowStore(self.rig.store)
        self.engine = TransferEngine(self.rig.movers, load_timeout_s=timeout_s, max_queued_stores=99)
        runtime = Runtime(onboard="layered", load_timeout_s=timeout_s)
        self.layered = LayeredWork(self.rig.movers.parts, self.engine, self.rig.movers.mark, runtime, may_fail=may_fail)

    def forward(self, loads, stores=(), copying=LANDED):
        self.layered.begin(loads)
        for layer in range(N_LAYERS):
            self.layered.load_layer(layer)
        return self.layered.end(stores, copying)

    def results(self, n):
        """Causes by transfer, of `n`."""
        found = {}
        while len(found) < n:
            for result in [*self.layered.poll(), *self.engine.poll(0.01)]:
                found[result.transfer_id] = {failure.index: failure.cause for failure in result.failures}
        return found

    def close(self):
        assert self.layered.close(30.0)
        assert self.engine.close(30.0)


@pytest.fixture
def work():
    made = Work()
    yield made
    made.close()


def key_on(parent, name):
    return BlockKey(BlockHash(name * 16), parent, BlockHash(b"p" * 16))


def stage_of(number, keys, after=(), route=Route.DEVICE_TO_HOST):
    return Transfer(number, route, tuple(keys), after=after)


def test_nothing_is_kept_of_a_step_in_which_a_load_failed(work):
    """What was computed on such a block need not be its child: those between may be in host memory already."""
    work.rig.fill_store(0, BLOCKS[0])
    work.rig.fill_store(1, BLOCKS[1])
    work.rig.memory.flip(0, 5000)
    loads = [read_of(1, BLOCKS[:2], [0, 1], [4, 5]), load_of(2, BLOCKS[:2], [4, 5], [run_of(0), run_of(1)], (1,))]
    between = key_on(BLOCKS[1].key.hash, b"c")
    computed = key_on(between.hash, b"g")
    stores = [stage_of(5, [computed]), stage_of(6, [computed], after=(5,), route=Route.HOST_TO_DISK)]
    assert list(work.forward(loads, stores)) == []
    assert work.layered.take_failed_pages() == set(run_of(0).pages)
    assert work.layered.take_failed_pages() == set()
    cancelled = Cause.CANCELLED
    assert work.results(4) == {1: {0: Cause.CORRUPT}, 2: {0: Cause.CORRUPT}, 5: {0: cancelled}, 6: {0: cancelled}}
    work.rig.fill_host(6, BLOCKS[2])
    assert work.forward([load_of(8, BLOCKS[2:3], [6], [run_of(2)])], stores) == stores  # the next step's own
    assert work.results(1) == {8: {}}


def test_a_store_that_is_not_kept_is_told_of_when_nothing_writes_its_slots_any_more(work):
    """Else others would get these slots while copies still land there."""
    work.rig.fill_host(4, BLOCKS[0])
    loads = [load_of(1, BLOCKS[1:2], [4], [run_of(0)])]  # the slot has another block
    child = key_on(BLOCKS[1].key.hash, b"c")
    stores = [stage_of(5, [child]), stage_of(6, [child], after=(5,), route=Route.HOST_TO_DISK)]
    copying = Flying()
    assert list(work.forward(loads, stores, copying)) == []
    assert work.results(1) == {1: {0: Cause.CORRUPT}}
    assert work.layered.poll() == []
    copying.end()
    assert [result.transfer_id for result in work.layered.poll()] == [5, 6]  # a write never before its stage
    assert work.layered.poll() == []


def test_what_cannot_go_by_layers_is_there_before_the_forward(work):
    work.rig.fill_store(0, BLOCKS[0])
    work.rig.fill_store(1, BLOCKS[1])
    work.rig.memory.flip(1, 5000)
    runs = (run_of(0), run_of(1))
    keys = tuple(block.key for block in BLOCKS[:2])
    work.rig.device.clear()
    work.layered.begin([Transfer(1, Route.DISK_TO_DEVICE, keys, (0, 1), pages=runs)])
    assert work.rig.on_device(runs[0]).any()
    stores = [stage_of(5, [key_on(keys[1].hash, b"c")])]
    assert list(work.layered.end(stores)) == []
    assert work.layered.take_failed_pages() == set(runs[1].pages)
    assert work.results(2) == {1: {1: Cause.CORRUPT}, 5: {0: Cause.CANCELLED}}


def test_an_engine_that_would_hear_too_late_is_ended_rather_than_served_wrong_bytes():
    work = Work(may_fail=False)
    try:
        work.rig.fill_host(4, BLOCKS[0])
        with pytest.raises(RuntimeError, match="could not be loaded under the forward"):
            work.forward([load_of(1, BLOCKS[1:2], [4], [run_of(0)])])
    finally:
        work.close()


def test_behind_a_read_that_never_ends_loads_from_host_memory_still_come():
    """The requests are answered by their deadline, so that the disk is left alone; and nobody waits for its threads."""
    work = Work(timeout_s=0.05)
    try:
        for slot in (0, 1):
            work.rig.fill_store(slot, BLOCKS[slot])
        work.rig.fill_host(6, BLOCKS[2])
        work.slow.hold("read")
        for number, at in ((1, 0), (3, 1)):  # as many as there are threads
            read = read_of(number, BLOCKS[at : at + 1], [at], [4 + at])
            work.forward([read, load_of(number + 1, BLOCKS[at : at + 1], [4 + at], [run_of(at)], (number,))])
            assert work.layered.take_failed_pages() == set(run_of(at).pages)
            assert work.results(1) == {number + 1: {0: Cause.TIMEOUT}}
        work.forward([load_of(5, BLOCKS[2:3], [6], [run_of(2)])])
        assert work.layered.take_failed_pages() == set()
        assert work.results(1) == {5: {}}
        assert work.rig.on_device(run_of(2)).any()
        work.slow.let_go()
        assert work.results(2).keys() == {1, 3}
    finally:
        work.slow.let_go()
        work.close()


def test_a_step_that_is_broken_off_fails_and_the_next_one_is_loaded(work):
    for slot, block in ((5, BLOCKS[1]), (6, BLOCKS[2])):
        work.rig.fill_host(slot, block)
    work.layered.begin([load_of(1, BLOCKS[1:2], [5], [run_of(1)])])
    work.layered.load_layer(0)
    work.forward([load_of(2, BLOCKS[2:3], [6], [run_of(2)])])
    assert work.layered.take_failed_pages() == set(run_of(1).pages)
    assert work.results(2) == {1: {0: Cause.CANCELLED}, 2: {}}
