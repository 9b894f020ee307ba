"""Loads and stores layer by layer: the same bytes as block by block, each layer in time, and any fault is a miss."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from tenuto.errors import Cause
from tenuto.testing.blocks import SMALL, payload_of
from tenuto.testing.faults import SlowStore
from tenuto.testing.memory_store import MemoryStore
from tenuto.transfers.layered import LayeredLoads, LayeredStores, plan_loads, plan_stores
from tenuto.transfers.parts import Parts
from tenuto.transfers.plan import Route, Transfer
from tests.transfers.test_movers import BLOCKS, Rig, canonical, run_of

pytestmark = pytest.mark.unit

N_LAYERS = SMALL.n_layers
JOIN_S = 30.0


def keys_of(blocks):
    return tuple(block.key for block in blocks)


def load_of(number, blocks, slots, runs, after=()):
    return Transfer(number, Route.HOST_TO_DEVICE, keys_of(blocks), tuple(slots), pages=tuple(runs), after=after)


def read_of(number, blocks, disk_slots, slots, volume=""):
    return Transfer(number, Route.DISK_TO_HOST, keys_of(blocks), tuple(disk_slots), tuple(slots), volume=volume)


class Watched:
    """A device that says when its layers were fenced, and can be held in the middle of one."""

    def __init__(self, device, order):
        self.device, self.order = device, order

    def gather(self, runs, slots, layers=None):
        self.order.append(("gather", layers))
        return self.device.gather(runs, slots, layers)

    def scatter(self, runs, slots, after, layers=None):
        self.device.scatter(runs, slots, after, layers)
        self.order.append(("scatter", layers[0]))
        return _Fence(layers[0], self.order)

    def settle(self):
        self.device.settle()

    def mark(self):
        return self.device.mark()


class _Fence:
    has_ended = True

    def __init__(self, layer, order):
        self.layer, self.order = layer, order

    def wait(self):
        if "the GPU has failed" in self.order:
            raise RuntimeError("CUDA error")

    def fence(self):
        self.order.append(("fence", self.layer))


class Layered(Rig):
    """Loads and stores over the rig's device, arena and store; all ends with the test."""

    def __init__(self, store=None, timeout_s=JOIN_S, lookahead=2, most_bytes=1 << 30):
        super().__init__()
        self.order = []
        self.parts = Parts(Watched(self.device, self.order), self.arena, self.codec, store or self.store)
        self.loads = LayeredLoads(self.parts, lookahead=lookahead, timeout_s=timeout_s, most_bytes=most_bytes)
        self.stores = LayeredStores(self.parts)

    def begin(self, *transfers):
        plans, rest = plan_loads(transfers)
        assert rest == []
        self.loads.begin(plans, self.parts.device.mark())

    def load_all(self):
        for layer in range(N_LAYERS):
            self.loads.load_layer(layer)

    def results(self, runner, n):
        """The causes by transfer, when `n` results have come."""
        found = {}
        with runner._threads.changed:
            assert runner._threads.changed.wait_for(lambda: len(runner._results) >= n, JOIN_S)
        for result in runner.poll():
            assert result.transfer_id not in found
            found[result.transfer_id] = {failure.index: failure.cause for failure in result.failures}
        assert runner.n_pending() == 0
        return found

    def close(self):
        assert self.loads.close(JOIN_S)
        assert self.stores.close(JOIN_S)


@pytest.fixture
def make():
    made = []

    def build(*args, **options):
        made.append(Layered(*args, **options))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


def expect_loaded(rig, blocks, runs, layers=range(N_LAYERS)):
    for block, run in zip(blocks, runs, strict=True):
        wanted = canonical(payload_of(SMALL, block))
        for layer in layers:
            step = rig.device._page_tokens
            np.testing.assert_array_equal(rig.on_device(run)[layer][..., run.first * step :, :],
                                          wanted[layer][..., run.first * step :, :])  # fmt: skip


def test_each_layer_is_in_the_pages_when_it_was_waited_for(make):
    rig = make()
    runs = [run_of(0), run_of(1, first=2), run_of(2)]
    rig.fill_host(4, BLOCKS[0])
    for disk_slot, block in ((3, BLOCKS[1]), (5, BLOCKS[2])):
        rig.fill_store(disk_slot, block)
    rig.device.clear()
    rig.begin(
        load_of(1, BLOCKS[:1], [4], runs[:1]),
        read_of(2, BLOCKS[1:3], [3, 5], [6, 7]),
        load_of(3, BLOCKS[1:3], [6, 7], runs[1:], after=(2,)),
    )
    for layer in range(N_LAYERS):
        rig.loads.load_layer(layer)
        assert rig.order[-1] == ("fence", layer)
        expect_loaded(rig, BLOCKS[:3], runs, range(layer + 1))
    assert rig.loads.end() == {}
    assert rig.results(rig.loads, 3) == {1: {}, 2: {}, 3: {}}
    assert rig.loads.n_reads == N_LAYERS  # one call for each layer, however many blocks
    for slot, block in ((6, BLOCKS[1]), (7, BLOCKS[2])):  # and they are whole in host memory
        assert rig.host_payload(slot) == payload_of(SMALL, block)
        rig.codec.verify(rig.arena.slot(slot), block.key.hash)


def test_no_more_layers_than_the_window_are_ahead_of_the_one_that_is_waited_for(make):
    slow = SlowStore(MemoryStore(None, 0))
    rig = make(slow, lookahead=1)
    slow.store = rig.memory
    rig.fill_store(0, BLOCKS[0])
    slow.hold("read")
    rig.begin(read_of(1, BLOCKS[:1], [0], [2]), load_of(2, BLOCKS[:1], [2], [run_of(0)], after=(1,)))
    slow.wait_blocked("read")  # the first layer, alone: later ones need its header
    slow.let_go("read", 1)
    rig.loads.load_layer(0)
    slow.wait_blocked("read")  # one ahead
    slow.let_go()
    with rig.loads._threads.changed:
        rig.loads._threads.changed.wait_for(lambda: not rig.loads._steps[0].n_moving, JOIN_S)
        assert rig.loads._steps[0].n_claimed == 2
    for layer in range(1, N_LAYERS):
        rig.loads.load_layer(layer)
    assert rig.loads.end() == {}
    assert rig.results(rig.loads, 2) == {1: {}, 2: {}}


@pytest.mark.parametrize("layer", range(N_LAYERS))
def test_a_harmed_layer_fails_its_block_alone_and_nothing_of_it_is_kept(make, layer):
    rig = make()
    for slot in (0, 1):
        rig.fill_store(slot, BLOCKS[slot])
    rig.memory.flip(1, SMALL.header_bytes + layer * SMALL.segment_bytes + 5)
    runs = [run_of(0), run_of(1)]
    rig.begin(read_of(1, BLOCKS[:2], [0, 1], [4, 5]), load_of(2, BLOCKS[:2], [4, 5], runs, after=(1,)))
    rig.load_all()
    failures = rig.loads.end()
    assert {index: failure.cause for index, failure in failures[2].items()} == {1: Cause.CORRUPT}
    assert rig.results(rig.loads, 2) == {1: {1: Cause.CORRUPT}, 2: {1: Cause.CORRUPT}}
    expect_loaded(rig, BLOCKS[:1], runs[:1])


def test_a_store_that_fails_in_the_middle_fails_what_it_did_not_bring(make):
    rig = make()
    for slot in (0, 1):
        rig.fill_store(slot, BLOCKS[slot])
    runs = [run_of(0), run_of(1)]
    rig.begin(read_of(1, BLOCKS[:2], [0, 1], [4, 5]), load_of(2, BLOCKS[:2], [4, 5], runs, after=(1,)))
    rig.loads.load_layer(0)
    rig.store.fail("read", Cause.IO_ERROR)
    rig.load_all()
    causes = {index: failure.cause for index, failure in rig.loads.end().get(2, {}).items()}
    assert causes in ({}, {0: Cause.IO_ERROR, 1: Cause.IO_ERROR})  # all may have been on their way before
    assert rig.results(rig.loads, 2) == {1: causes, 2: causes}


def test_a_layer_that_does_not_come_in_time_gives_the_load_up_and_its_pages_are_never_touched_again(make):
    slow = SlowStore(MemoryStore(None, 0))
    rig = make(slow, timeout_s=0.0)
    slow.store = rig.memory
    rig.fill_store(0, BLOCKS[0])
    slow.hold("read")
    rig.begin(read_of(1, BLOCKS[:1], [0], [2]), load_of(2, BLOCKS[:1], [2], [run_of(0)], after=(1,)))
    slow.wait_blocked("read")
    rig.device.clear()
    rig.load_all()
    assert {index: failure.cause for index, failure in rig.loads.end()[2].items()} == {0: Cause.TIMEOUT}
    assert [result.transfer_id for result in rig.loads.poll()] == [2]  # its host slot is still being written
    assert rig.loads.is_stuck()
    assert rig.loads.n_pending() == 1
    slow.let_go()
    assert rig.results(rig.loads, 1) == {1: {0: Cause.TIMEOUT}}
    assert not rig.loads.is_stuck()
    assert not rig.device.pages.any()


def test_what_the_engine_waits_for_layers_is_counted(make):
    slow, waits_s = SlowStore(MemoryStore(None, 0)), 0.05
    rig = make(slow, timeout_s=waits_s)
    slow.store = rig.memory
    rig.fill_store(0, BLOCKS[0])
    slow.hold("read")
    rig.begin(read_of(1, BLOCKS[:1], [0], [2]), load_of(2, BLOCKS[:1], [2], [run_of(0)], after=(1,)))
    began = time.monotonic()
    rig.load_all()
    assert 0.9 * waits_s < rig.loads.waited_s <= time.monotonic() - began
    slow.let_go()
    rig.loads.end()


@pytest.mark.parametrize("asked", [[], [0]])
def test_a_load_that_is_given_up_twice_is_answered_once(make, asked):
    slow = SlowStore(MemoryStore(None, 0))
    rig = make(slow, timeout_s=0.0)
    slow.store = rig.memory
    rig.fill_store(0, BLOCKS[0])
    slow.hold("read")
    rig.begin(read_of(1, BLOCKS[:1], [0], [2]), load_of(2, BLOCKS[:1], [2], [run_of(0)], after=(1,)))
    slow.wait_blocked("read")
    for layer in asked:  # and then no more
        rig.loads.load_layer(layer)
    cause = Cause.TIMEOUT if asked else Cause.CANCELLED
    assert {index: failure.cause for index, failure in rig.loads.end()[2].items()} == {0: cause}
    slow.let_go()
    assert rig.results(rig.loads, 2) == {1: {0: cause}, 2: {0: cause}}


def test_reads_that_are_made_together_share_the_time_they_took(make):
    rig = make()
    for slot in range(4):
        rig.fill_store(slot, BLOCKS[slot])
    rig.begin(
        read_of(1, BLOCKS[:3], [0, 1, 2], [4, 5, 6]), load_of(2, BLOCKS[:3], [4, 5, 6], [run_of(0)] * 3, after=(1,)),
        read_of(3, BLOCKS[3:4], [3], [7]), load_of(4, BLOCKS[3:4], [7], [run_of(1)], after=(3,)),
    )  # fmt: skip
    step = rig.loads._now
    rig.load_all()
    assert rig.loads.end() == {}
    with rig.loads._threads.changed:
        assert rig.loads._threads.changed.wait_for(lambda: len(rig.loads._results) == 4, JOIN_S)
    seconds = {result.transfer_id: result.seconds for result in rig.loads.poll()}
    assert seconds[1] == pytest.approx(3 * seconds[3])
    assert seconds[1] + seconds[3] == pytest.approx(step.read_s)


def test_what_is_being_queued_when_a_load_is_given_up_comes_before_what_the_engine_queues_next(make):
    """Its thread may be put off right behind it: the pages go to others then, and late bytes would be theirs."""
    rig = make(timeout_s=0.0)
    rig.fill_host(4, BLOCKS[0])
    loads, scatter, into_pages = rig.loads, rig.parts.device.scatter, rig.loads._into_pages
    is_touching, has_ended = threading.Event(), threading.Event()

    def held(*args):
        is_touching.set()
        with loads._threads.changed:
            assert loads._threads.changed.wait_for(lambda: loads._steps[0].is_given_up, JOIN_S)
        return scatter(*args)

    def put_off(*args):
        into_pages(*args)
        assert has_ended.wait(JOIN_S)

    rig.parts.device.scatter, loads._into_pages = held, put_off
    rig.begin(load_of(1, BLOCKS[:1], [4], [run_of(0)]))
    assert is_touching.wait(JOIN_S)
    loads.load_layer(0)
    order = list(rig.order)
    loads.end()
    has_ended.set()
    assert order[:2] == [("scatter", 0), ("fence", 0)]
    assert rig.results(loads, 1) == {1: {0: Cause.TIMEOUT}}


def test_a_load_that_is_withdrawn_leaves_the_others_alone(make):
    slow = SlowStore(MemoryStore(None, 0))
    rig = make(slow)
    slow.store = rig.memory
    for slot in (0, 1):
        rig.fill_store(slot, BLOCKS[slot])
    runs = [run_of(0), run_of(1)]
    rig.device.clear()
    slow.hold("read")
    rig.begin(
        read_of(1, BLOCKS[:1], [0], [4]), load_of(2, BLOCKS[:1], [4], runs[:1], after=(1,)),
        read_of(3, BLOCKS[1:2], [1], [5]), load_of(4, BLOCKS[1:2], [5], runs[1:], after=(3,)),
    )  # fmt: skip
    slow.wait_blocked("read")
    rig.loads.withdraw(2)
    slow.let_go()
    rig.load_all()
    assert list(rig.loads.end()) == [2]
    cancelled = {0: Cause.CANCELLED}
    assert rig.results(rig.loads, 4) == {1: cancelled, 2: cancelled, 3: {}, 4: {}}
    assert not rig.on_device(runs[0]).any()
    expect_loaded(rig, BLOCKS[1:2], runs[1:])


@pytest.mark.parametrize("asked", [[], [0], range(N_LAYERS - 1), [N_LAYERS - 1]])
def test_layers_that_nobody_waited_for_fail_their_blocks(make, asked):
    rig = make()
    rig.fill_host(4, BLOCKS[0])
    rig.begin(load_of(1, BLOCKS[:1], [4], [run_of(0)]))
    for layer in asked:
        rig.loads.load_layer(layer)
    assert {index: failure.cause for index, failure in rig.loads.end()[1].items()} == {0: Cause.CANCELLED}
    assert rig.results(rig.loads, 1) == {1: {0: Cause.CANCELLED}}


def test_a_host_slot_with_another_block_is_not_loaded(make):
    rig = make()
    rig.fill_host(4, BLOCKS[0])
    rig.fill_host(5, BLOCKS[1])
    runs = [run_of(0), run_of(1)]
    rig.begin(load_of(1, [BLOCKS[2], BLOCKS[1]], [4, 5], runs))
    rig.load_all()
    assert {index: failure.cause for index, failure in rig.loads.end()[1].items()} == {0: Cause.CORRUPT}
    assert rig.results(rig.loads, 1) == {1: {0: Cause.CORRUPT}}
    expect_loaded(rig, BLOCKS[1:2], runs[1:])


def test_a_device_that_raises_is_a_failure_and_not_the_end(make, our_log):
    rig = make()
    rig.fill_host(4, BLOCKS[0])
    rig.parts.device.scatter = None
    rig.begin(load_of(1, BLOCKS[:1], [4], [run_of(0)]))
    rig.load_all()
    assert {index: failure.cause for index, failure in rig.loads.end()[1].items()} == {0: Cause.IO_ERROR}
    assert rig.results(rig.loads, 1) == {1: {0: Cause.IO_ERROR}}
    assert "layer 0 of a load failed" in our_log()[0].getMessage()


def test_bytes_that_a_gpu_never_brings_fail_their_blocks_and_the_next_load_goes_on(make, our_log):
    rig = make()
    rig.fill_host(4, BLOCKS[0])
    rig.begin(load_of(1, BLOCKS[:1], [4], [run_of(0)]))
    rig.load_all()
    rig.order.append("the GPU has failed")
    assert rig.loads.end() == {}
    assert rig.results(rig.loads, 1) == {1: {0: Cause.IO_ERROR}}
    assert "has not landed" in our_log()[0].getMessage()
    rig.order.remove("the GPU has failed")
    rig.begin(load_of(2, BLOCKS[:1], [4], [run_of(0)]))
    rig.load_all()
    assert rig.loads.end() == {}
    assert rig.results(rig.loads, 1) == {2: {}}


def test_steps_follow_each_other_while_the_last_ones_bytes_still_land(make):
    rig = make()
    rig.fill_host(4, BLOCKS[0])
    waiting = threading.Event()
    landing = _Fence(0, rig.order)
    landing.wait = lambda: waiting.wait(JOIN_S)
    scatter = rig.parts.device.scatter
    rig.parts.device.scatter = lambda *args: (scatter(*args), landing)[1]
    rig.begin(load_of(1, BLOCKS[:1], [4], [run_of(0)]))
    rig.load_all()
    rig.loads.end()
    rig.parts.device.scatter = scatter
    rig.begin(load_of(2, BLOCKS[:1], [4], [run_of(1)]))
    rig.load_all()
    rig.loads.end()
    with rig.loads._threads.changed:
        assert rig.loads._threads.changed.wait_for(lambda: rig.loads._results, JOIN_S)
    assert [result.transfer_id for result in rig.loads.poll()] == [2]
    waiting.set()
    assert rig.results(rig.loads, 1) == {1: {}}


def store_of(number, blocks, slots, runs):
    return Transfer(
        number, Route.DEVICE_TO_HOST, keys_of(blocks), targets=tuple(slots), pages=tuple(runs), blocks=tuple(blocks)
    )


def write_of(number, blocks, slots, disk_slots, after):
    return Transfer(number, Route.HOST_TO_DISK, keys_of(blocks), tuple(slots), tuple(disk_slots), after=after)


@pytest.mark.parametrize("hooks", [range(N_LAYERS), [], [0], [N_LAYERS - 1]])
def test_what_is_stored_layer_by_layer_is_what_is_stored_whole(make, hooks):
    rig = make()
    runs = [run_of(0), run_of(1)]
    plans, rest = plan_stores([store_of(1, BLOCKS[:2], [2, 3], runs), write_of(2, BLOCKS[:2], [2, 3], [5, 6], (1,))])
    assert rest == []
    rig.stores.begin(plans)
    for layer in hooks:
        rig.stores.store_layer(layer)
    rig.stores.end()
    assert rig.results(rig.stores, 2) == {1: {}, 2: {}}
    assert [layers for _, layers in rig.order][-1][1] == N_LAYERS
    assert sum(stop - start for _, (start, stop) in rig.order) == N_LAYERS  # each layer once
    layered = [rig.memory.stored(slot) for slot in (5, 6)]
    assert rig.move(Route.DEVICE_TO_HOST, BLOCKS[:2], targets=[0, 1], runs=runs) == {}
    assert rig.move(Route.HOST_TO_DISK, BLOCKS[:2], sources=[0, 1], targets=[0, 1]) == {}
    assert [rig.memory.stored(slot) for slot in (0, 1)] == layered
    for slot, run in zip((2, 3), runs, strict=True):
        np.testing.assert_array_equal(canonical(rig.host_payload(slot)), rig.on_device(run))


def test_blocks_are_in_host_memory_before_the_disk_is_done_and_listed_after_their_headers(make):
    slow = SlowStore(MemoryStore(None, 0))
    rig = make(slow)
    slow.store = rig.memory
    slow.hold("commit")
    plans, _ = plan_stores([store_of(1, BLOCKS[:1], [2], [run_of(0)]), write_of(2, BLOCKS[:1], [2], [5], (1,))])
    rig.stores.begin(plans)
    for layer in range(N_LAYERS):
        rig.stores.store_layer(layer)
    rig.stores.end()
    slow.wait_blocked("commit")
    assert [result.transfer_id for result in rig.stores.poll()] == [1]
    assert rig.memory.stored(5) is None
    slow.let_go()
    assert rig.results(rig.stores, 1) == {2: {}}
    assert rig.memory.stored(5) is not None


@pytest.mark.parametrize("op", ["write", "commit"])
def test_a_store_that_refuses_costs_the_write_alone(make, op):
    rig = make()
    rig.store.fail(op, Cause.NO_SPACE, slots=[6])
    blocks, runs = BLOCKS[:2], [run_of(0), run_of(1)]
    plans, _ = plan_stores([store_of(1, blocks, [2, 3], runs), write_of(2, blocks, [2, 3], [5, 6], (1,))])
    rig.stores.begin(plans)
    rig.stores.end()
    assert rig.results(rig.stores, 2) == {1: {}, 2: {1: Cause.NO_SPACE}}
    assert rig.memory.slots == [5]


def test_a_gather_that_raises_keeps_nothing(make, our_log):
    rig = make()
    gather = rig.parts.device.gather

    def fail(runs, slots, layers):
        if layers[0]:
            raise RuntimeError("the device")
        return gather(runs, slots, layers)

    rig.parts.device.gather = fail
    plans, _ = plan_stores([store_of(1, BLOCKS[:1], [2], [run_of(0)]), write_of(2, BLOCKS[:1], [2], [5], (1,))])
    rig.stores.begin(plans)
    for layer in range(N_LAYERS):
        rig.stores.store_layer(layer)
    rig.stores.end()
    failed = {0: Cause.IO_ERROR}
    assert rig.results(rig.stores, 2) == {1: failed, 2: failed}
    assert rig.memory.slots == []
    assert "of a store failed" in our_log()[0].getMessage()


def test_what_is_stored_by_layers_is_loaded_by_layers(make):
    rig = make()
    runs = [run_of(0), run_of(1)]
    before = rig.device.pages.copy()
    plans, _ = plan_stores([store_of(1, BLOCKS[:2], [2, 3], runs), write_of(2, BLOCKS[:2], [2, 3], [5, 6], (1,))])
    rig.stores.begin(plans)
    for layer in range(N_LAYERS):
        rig.stores.store_layer(layer)
    rig.stores.end()
    rig.results(rig.stores, 2)
    rig.device.clear()
    rig.begin(read_of(3, BLOCKS[:2], [5, 6], [0, 1]), load_of(4, BLOCKS[:2], [0, 1], runs, after=(3,)))
    rig.load_all()
    assert rig.loads.end() == {}
    rig.results(rig.loads, 2)
    for run in runs:
        np.testing.assert_array_equal(rig.device.pages[list(run.pages)], before[list(run.pages)])


def test_only_what_waits_for_its_own_read_goes_layer_by_layer():
    read = read_of(1, BLOCKS[:2], [0, 1], [2, 3])
    own = load_of(2, BLOCKS[:2], [2, 3], [run_of(0), run_of(1)], after=(1,))
    host = load_of(3, BLOCKS[2:3], [4], [run_of(2)])
    other = load_of(4, BLOCKS[1:2], [3], [run_of(3)], after=(1,))  # shares a block of that read
    late = load_of(5, BLOCKS[3:4], [5], [run_of(4)], after=(99,))  # of an earlier step
    direct = replace(read, id=6, route=Route.DISK_TO_DEVICE)
    plans, rest = plan_loads([read, own, host, other, late, direct])
    assert [plan.transfers for plan in plans] == [(read, own), (host,)]
    assert rest == [other, late, direct]
    write = write_of(8, BLOCKS[1:2], [3], [5], (7,))
    stage = store_of(7, BLOCKS[:2], [2, 3], [run_of(0), run_of(1)])
    alone = write_of(9, BLOCKS[:1], [1], [6], ())
    plans, rest = plan_stores([stage, write, alone])
    assert [(plan.stage, plan.write, plan.written) for plan in plans] == [(stage, write, (1,))]
    assert rest == [alone]


def test_no_plans_mean_nothing(make):
    rig = make()
    rig.loads.begin([], None)
    rig.load_all()
    assert rig.loads.end() == {}
    rig.loads.withdraw(1)
    rig.stores.begin([])
    rig.stores.store_layer(0)
    rig.stores.end()
    assert rig.loads.poll() == rig.stores.poll() == []
