"""What a forward fills, copied while it computes: the same bytes as behind it, and nothing is ended too early."""

import threading

import numpy as np
import pytest

from tenuto.errors import Cause
from tenuto.testing.blocks import SMALL
from tenuto.transfers.engine import TransferEngine
from tenuto.transfers.lanes import LANDED
from tenuto.transfers.layered import LayeredGathers
from tenuto.transfers.layered.gathers import Landings
from tenuto.transfers.movers import Movers
from tests.transfers.test_layered import JOIN_S, N_LAYERS, load_of, store_of, write_of
from tests.transfers.test_movers import BLOCKS, N_BOUNCE, Rig, canonical, run_of

pytestmark = pytest.mark.unit

LAYER_BYTES = 2 * SMALL.segment_bytes
"""Of two blocks, which most tests store."""
RUNS = [run_of(0), run_of(1)]


class Flying:
    """A landing that ends when it is told to."""

    def __init__(self):
        self._ended = threading.Event()
        self.n_waits = self.n_fences = 0

    @property
    def has_ended(self):
        return self._ended.is_set()

    def wait(self):
        self.n_waits += 1
        assert self._ended.wait(JOIN_S)

    def fence(self):
        self.n_fences += 1

    def end(self):
        self._ended.set()


class Watched:
    """A device that knows which layers were copied out of it. When it is slow, copies land when they are told to."""

    def __init__(self, device, *, is_slow):
        self.device, self.is_slow = device, is_slow
        self.gathered, self.flying = [], []
        self.error = None

    def gather(self, runs, slots, layers=None):
        if self.error is not None:
            raise self.error
        self.gathered.append(layers)
        self.device.gather(runs, slots, layers)
        if not self.is_slow:
            return LANDED
        self.flying.append(Flying())
        return self.flying[-1]

    def __getattr__(self, name):
        return getattr(self.device, name)

    def land(self):
        for landing in self.flying:
            landing.end()


class Bed(Rig):
    """A forward over the rig's device, and an engine of transfers behind it."""

    def __init__(self, *, least_bytes=1, is_slow=False):
        super().__init__()
        self.watched = Watched(self.device, is_slow=is_slow)
        self.movers = Movers(self.arena, self.codec, self.watched, self.store, N_BOUNCE)
        self.engine = TransferEngine(self.movers, load_timeout_s=JOIN_S, max_queued_stores=9)
        self.gathers = LayeredGathers(self.watched, SMALL, least_bytes)
        self.truth = self.device.pages.copy()
        self.device.clear()

    def compute(self, layer):
        self.device.pages[:, layer] = self.truth[:, layer]

    def forward(self, transfers, hooks=range(N_LAYERS)):
        """Each layer is computed just before its hook, if that comes at all."""
        self.gathers.begin(transfers)
        for layer in range(N_LAYERS):
            self.compute(layer)
            for hook in hooks:
                if hook == layer:
                    self.gathers.store_layer(layer)

    def end(self, transfers):
        queued, copying = self.gathers.end()
        self.engine.submit(transfers, queued)
        return copying

    def results(self, n):
        found = {}
        while len(found) < n:
            for result in self.engine.poll(0.05):
                found[result.transfer_id] = {failure.index: failure.cause for failure in result.failures}
        return found

    def expect(self, slots, runs):
        for slot, run, block in zip(slots, runs, BLOCKS, strict=False):
            assert self.codec.is_block(self.arena.slot(slot), block.key.hash)
            np.testing.assert_array_equal(canonical(self.host_payload(slot)), self.on_device(run))

    def close(self):
        self.watched.land()
        assert self.engine.close(JOIN_S)


@pytest.fixture
def make():
    made = []

    def build(**options):
        made.append(Bed(**options))
        return made[-1]

    yield build
    for bed in made:
        bed.close()


def two_blocks():
    return [store_of(1, BLOCKS[:2], [2, 3], RUNS), write_of(2, BLOCKS[:2], [2, 3], [5, 6], (1,))]


@pytest.mark.parametrize("hooks", [range(N_LAYERS), [], [0], [N_LAYERS - 1]])
def test_what_is_copied_by_layers_is_what_is_copied_whole(make, hooks):
    bed = make()
    bed.forward(two_blocks(), hooks)
    bed.end(two_blocks())
    assert bed.results(2) == {1: {}, 2: {}}
    bed.expect((2, 3), RUNS)
    layers = bed.watched.gathered
    assert layers == [None] if not hooks else sum(stop - start for start, stop in layers) == N_LAYERS  # each once
    by_layers = [bed.memory.stored(slot) for slot in (5, 6)]
    whole = [store_of(3, BLOCKS[:2], [0, 1], RUNS), write_of(4, BLOCKS[:2], [0, 1], [0, 1], (3,))]
    bed.engine.submit(whole)
    assert bed.results(2) == {3: {}, 4: {}}
    assert [bed.memory.stored(slot) for slot in (0, 1)] == by_layers
    loads = [load_of(5, BLOCKS[:2], [2, 3], RUNS)]
    bed.device.clear()
    bed.engine.submit(loads)
    assert bed.results(1) == {5: {}}
    for run in RUNS:
        np.testing.assert_array_equal(bed.device.pages[list(run.pages)], bed.truth[list(run.pages)])


def test_each_layer_is_copied_behind_its_own_attention(make):
    bed = make()
    bed.forward(two_blocks())
    assert bed.watched.gathered == [(layer, layer + 1) for layer in range(N_LAYERS)]
    bed.end(two_blocks())
    assert len(bed.watched.gathered) == N_LAYERS
    assert bed.results(2) == {1: {}, 2: {}}


@pytest.mark.parametrize("n_together", range(1, N_LAYERS + 1))
def test_so_many_layers_are_copied_together_as_make_a_copy_worth_its_cost(make, n_together):
    bed = make(least_bytes=(n_together - 1) * LAYER_BYTES + 1)
    bed.forward(two_blocks())
    bed.end(two_blocks())
    starts = list(range(0, N_LAYERS, n_together))
    assert bed.watched.gathered == [(start, min(start + n_together, N_LAYERS)) for start in starts]
    assert bed.results(2) == {1: {}, 2: {}}
    bed.expect((2, 3), RUNS)


def test_what_is_little_is_copied_behind_the_forward_in_one(make):
    bed = make(least_bytes=N_LAYERS * LAYER_BYTES + 1)
    bed.forward(two_blocks())
    assert bed.watched.gathered == []
    assert bed.gathers.end() == ({}, LANDED)
    bed.engine.submit(two_blocks())
    assert bed.watched.gathered == [None]
    assert bed.results(2) == {1: {}, 2: {}}


def test_nothing_is_ended_before_it_has_landed_and_the_disk_comes_behind_that(make):
    bed = make(is_slow=True)
    bed.forward(two_blocks())
    copying = bed.end(two_blocks())
    for flying in bed.watched.flying[:-1]:
        flying.end()
    assert not copying.has_ended
    assert bed.engine.poll(0.05) == []
    assert bed.memory.slots == []
    bed.watched.land()
    assert bed.results(2) == {1: {}, 2: {}}
    assert copying.has_ended
    assert bed.memory.slots == [5, 6]


def test_several_transfers_of_a_step_leave_together_and_each_has_its_result(make):
    bed = make()
    stores = [store_of(1, BLOCKS[:1], [2], RUNS[:1]), store_of(2, BLOCKS[1:2], [3], RUNS[1:])]
    others = [load_of(3, BLOCKS[2:3], [4], [run_of(2)])]
    bed.fill_host(4, BLOCKS[2])
    bed.forward([*stores, *others])
    bed.end([*stores, *others])
    assert bed.results(3) == {1: {}, 2: {}, 3: {}}
    assert len(bed.watched.gathered) == N_LAYERS
    bed.expect((2, 3), RUNS)


def test_a_layer_that_is_computed_in_parts_is_copied_again_and_later_forwards_behind_them(make, our_log):
    bed = make()
    bed.gathers.begin(two_blocks())
    bed.gathers.store_layer(0)  # some of its tokens
    for layer in range(N_LAYERS):
        bed.compute(layer)
        bed.gathers.store_layer(layer)
    copying = bed.end(two_blocks())
    assert copying.has_ended
    assert bed.results(2) == {1: {}, 2: {}}
    bed.expect((2, 3), RUNS)
    assert bed.watched.gathered == [(0, 1), None]
    bed.forward(two_blocks())
    bed.end(two_blocks())
    assert bed.watched.gathered == [(0, 1), None, None]
    assert bed.results(2) == {1: {}, 2: {}}
    assert [record.levelname for record in our_log()] == ["INFO"]


@pytest.mark.parametrize("at", range(N_LAYERS))
def test_a_copy_that_can_not_be_queued_is_made_behind_the_forward(make, our_log, at):
    bed = make(is_slow=True)
    bed.gathers.begin(two_blocks())
    for layer in range(N_LAYERS):
        bed.compute(layer)
        bed.watched.error = RuntimeError("the device") if layer == at else None
        bed.gathers.store_layer(layer)
    bed.watched.error = None
    bed.end(two_blocks())
    bed.watched.land()
    assert bed.results(2) == {1: {}, 2: {}}
    bed.expect((2, 3), RUNS)
    assert "of a store failed" in our_log()[0].getMessage()


def test_a_device_that_fails_for_good_costs_the_blocks_alone(make, our_log):
    bed = make(is_slow=True)
    bed.watched.error = RuntimeError("the device")
    bed.forward(two_blocks())
    bed.end(two_blocks())
    failed = dict.fromkeys((0, 1), Cause.IO_ERROR)
    assert bed.results(2) == {1: failed, 2: failed}
    assert bed.memory.slots == []
    assert our_log()


def test_what_is_copied_again_comes_after_the_first_copies(make):
    bed = make(is_slow=True)
    bed.gathers.begin(two_blocks())
    bed.gathers.store_layer(0)
    bed.gathers.store_layer(0)
    (first,) = bed.watched.flying
    queued, copying = bed.gathers.end()
    assert queued == {}
    assert first.n_fences == 1
    assert not copying.has_ended


def test_a_forward_that_is_broken_off_is_waited_for_before_the_next_takes_its_slots(make):
    bed = make(is_slow=True)
    bed.gathers.begin(two_blocks())
    bed.gathers.store_layer(0)
    (first,) = bed.watched.flying
    first.end()
    bed.gathers.begin([])
    assert first.n_waits == 1
    bed.gathers.store_layer(1)
    assert len(bed.watched.flying) == 1
    bed.gathers.drop()
    assert bed.gathers.end() == ({}, LANDED)


def test_a_gpu_that_fails_meanwhile_breaks_no_shutdown(make):
    bed = make(is_slow=True)
    bed.gathers.begin(two_blocks())
    bed.gathers.store_layer(0)

    def fail():
        raise RuntimeError("CUDA error")

    bed.watched.flying[0].wait = fail
    bed.gathers.drop()


def test_several_landings_are_one():
    parts = [Flying(), Flying()]
    both = Landings(tuple(parts))
    both.fence()
    parts[0].end()
    assert not both.has_ended
    parts[1].end()
    assert both.has_ended
    both.wait()
    assert [(part.n_waits, part.n_fences) for part in parts] == [(1, 1), (1, 1)]
