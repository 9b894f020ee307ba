"""Leader, worker, transfers and lanes upon a GPU that runs streams in any legal order: no wrong byte is computed on."""

import pytest

from tenuto.connectors.session import Worker
from tenuto.transfers.engine import TransferEngine
from tenuto.transfers.lanes import LANDED
from tenuto.transfers.layered import LayeredGathers
from tenuto.transfers.layered.gathers import Landings
from tenuto.transfers.movers import Movers
from tests.session.gpu_engine import GpuEngine
from tests.transfers.fake_cuda import WrongBytes
from tests.transfers.fresh_lanes import FreshLanes

pytestmark = pytest.mark.unit

N_STEPS, FAULT_RATE, PARTS_CHANCE = 30, 0.02, 0.3
N_TRIES = 100


@pytest.fixture(scope="module")
def lanes(tmp_path_factory):
    made = FreshLanes(tmp_path_factory.mktemp("lanes"))
    yield made
    made.forget()


@pytest.mark.parametrize(("save", "parts_chance"), [("forward", 0.0), ("layers", 0.0), ("layers", PARTS_CHANCE)])
@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_no_request_computes_on_wrong_bytes(monkeypatch, lanes, seed, save, parts_chance):
    n_loaded_pages = n_gathers = 0
    for number in range(seed, seed + 10):
        with monkeypatch.context() as patch:
            engine = GpuEngine(patch, lanes, number, FAULT_RATE * (number % 2), save, parts_chance)
            engine.live(N_STEPS)
        n_loaded_pages += engine.n_loaded_pages
        n_gathers += engine.gathers.n_gathers if engine.gathers else 0
    assert n_loaded_pages > 100
    assert (n_gathers > 50) == (save == "layers")


def forward_without_settling(patch):
    patch.setattr(TransferEngine, "settle", lambda _: None)


def pages_in_danger_are_saved_after_the_forward(patch):
    poll = Worker.poll

    def before_forward(worker, plan):
        worker._has_saved, worker.late = True, plan.before_forward
        worker._engine.settle()

    def late(worker):
        worker._engine.submit(worker.__dict__.pop("late", ()))
        return poll(worker)

    patch.setattr(Worker, "before_forward", before_forward)
    patch.setattr(Worker, "poll", late)


def pages_are_saved_before_the_forward_that_fills_them(patch):
    begin_step, end_forward = Worker.begin_step, Worker.end_forward

    def both(worker, plan):
        begin_step(worker, plan)
        end_forward(worker, plan)

    patch.setattr(Worker, "begin_step", both)
    patch.setattr(Worker, "end_forward", lambda *_: None)


def loads_without_a_mark(patch):
    mark = Movers.mark

    def unmarked(movers):
        made = mark(movers)
        made._ticket = None
        return made

    patch.setattr(Movers, "mark", unmarked)


def stores_that_nobody_waits_for(patch):
    land = Movers.land

    class Landed:
        def wait(self):
            """Not at all."""

    patch.setattr(Movers, "land", lambda movers, transfer, indices, _: land(movers, transfer, indices, Landed()))


@pytest.mark.parametrize(
    "fault",
    [
        forward_without_settling,
        pages_in_danger_are_saved_after_the_forward,
        pages_are_saved_before_the_forward_that_fills_them,
        loads_without_a_mark,
        stores_that_nobody_waits_for,
    ],
)
def test_each_moment_of_a_step_is_needed(monkeypatch, lanes, fault):
    for seed in range(N_TRIES):
        with monkeypatch.context() as patch:
            fault(patch)
            try:
                GpuEngine(patch, lanes, seed, FAULT_RATE).live(N_STEPS)
            except WrongBytes:
                return
    pytest.fail(f"nothing was wrong in {N_TRIES} lives with {fault.__name__}")


def layers_are_copied_before_they_are_computed(patch):
    patch.setattr(Worker, "store_layer", lambda worker, layer: layer or worker._gathers.store_layer(layer + 1))


def layers_that_nobody_waits_for(patch):
    end = LayeredGathers.end
    patch.setattr(LayeredGathers, "end", lambda gathers: (dict.fromkeys(end(gathers)[0], LANDED), LANDED))


def copies_that_are_made_again_beside_the_first(patch):
    patch.setattr(Landings, "fence", lambda _: None)


def layers_that_are_read_when_the_next_forward_overwrites_them(patch):
    """The reading of what was copied early is settled by the next forward, as all reading is."""
    forward_without_settling(patch)


@pytest.mark.parametrize(
    "fault",
    [
        layers_are_copied_before_they_are_computed,
        layers_that_nobody_waits_for,
        copies_that_are_made_again_beside_the_first,
        layers_that_are_read_when_the_next_forward_overwrites_them,
    ],
)
def test_each_moment_of_a_store_by_layers_is_needed(monkeypatch, lanes, fault):
    for seed in range(N_TRIES):
        with monkeypatch.context() as patch:
            fault(patch)
            try:
                GpuEngine(patch, lanes, seed, FAULT_RATE, "layers", PARTS_CHANCE).live(N_STEPS)
            except WrongBytes:
                return
    pytest.fail(f"nothing was wrong in {N_TRIES} lives with {fault.__name__}")
