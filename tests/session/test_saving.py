"""`save` "layers": what a step fills leaves the pages while it computes, whatever the engine calls, and when."""

import pytest
import torch

from tenuto.config import load_config
from tenuto.connectors.session import Leader, Progress, Setup, Worker
from tenuto.tokens import HashChain
from tenuto.transfers.plan import Route
from tests.session.session_rig import BLOCK, LAYOUT, NAMESPACE, PAGE, View

pytestmark = pytest.mark.unit

N_LAYERS = LAYOUT.n_layers
N_PAGES = 24
TOKENS = list(range(3 * BLOCK))
PAGES = list(range(1, 1 + len(TOKENS) // PAGE))
EACH = range(N_LAYERS)


class Side:
    """An engine of two layers, with a leader and a worker; `truth` is what computing writes into its pages."""

    def __init__(self, **runtime):
        config = load_config({
            "tiers": {"host": {"capacity": 16 * LAYOUT.extent_bytes}}, "runtime": {"cost_gate": False, **runtime},
        })  # fmt: skip
        setup = Setup(config, NAMESPACE, LAYOUT, PAGE, "e")
        self.leader, self.worker = Leader(setup), Worker(setup)
        generator = torch.Generator().manual_seed(7)
        self.truth = [torch.randn(N_PAGES, 1, PAGE, 32, generator=generator) for _ in EACH]
        self.pages = [torch.zeros(N_PAGES, 1, PAGE, 32) for _ in EACH]
        self.worker.register(self.pages)
        if self.worker._gathers is not None:
            self.worker._gathers.least_bytes = 1
        self.leader.connect({0: self.worker.handshake()})

    @property
    def n_gathers(self):
        return self.worker._gathers.n_gathers

    def step(self, plan, pages=PAGES, *, hooks=EACH, begins_late=False):
        """A forward that fills pages, layer by layer. Newer engines begin a step behind it where no load waits."""
        self.worker.before_forward(plan)
        if not begins_late:
            self.worker.begin_step(plan)
        for layer in EACH:
            self.worker.load_layer(layer)
            self.pages[layer][pages] = self.truth[layer][pages]
            if layer in hooks:
                self.worker.store_layer(layer)
        if begins_late:
            self.worker.begin_step(plan)
        self.worker.end_forward(plan)
        self.hear()

    def hear(self):
        news = self.worker.poll()
        report = self.worker.report()
        if report is not None:
            self.leader.receive(report)
        self.leader.check()
        return news

    def plan(self, name="a", tokens=TOKENS, pages=PAGES):
        view = View(name, tokens)
        return self.leader.plan_step([(view, Progress(name, pages, True, len(tokens)))], is_idle=False)

    def extents(self, tokens=TOKENS):
        """Of the blocks of a prompt, in host memory."""
        chain = HashChain(self.leader._namespace.digest, BLOCK)
        chain.append(tokens)
        with self.leader.manager.host.match(chain.hashes) as lease:
            assert len(lease.slots) == len(chain.hashes)
            return [bytes(self.worker._arena.slot(slot)) for slot in lease.slots]


@pytest.fixture
def start():
    made = []

    def make(**runtime):
        made.append(Side(**runtime))
        return made[-1]

    yield make
    for side in made:
        side.worker.shutdown()


@pytest.mark.parametrize("begins_late", [False, True])
@pytest.mark.parametrize("hooks", [EACH, (), (0,), (N_LAYERS - 1,)])
def test_the_extents_are_those_of_a_store_behind_the_forward(start, hooks, begins_late):
    behind, by_layers = start(), start(save="layers")
    behind.step(behind.plan())
    by_layers.step(by_layers.plan(), hooks=hooks, begins_late=begins_late)
    assert by_layers.extents() == behind.extents()
    assert by_layers.n_gathers == {EACH: N_LAYERS, (): 0, (0,): 2, (N_LAYERS - 1,): 1}[hooks]
    assert not by_layers.leader.has_pending


@pytest.mark.parametrize("begins_late", [False, True])
def test_what_a_step_fills_behind_a_reset_is_of_the_new_namespace(start, begins_late):
    side = start(save="layers")
    side.leader.reset()
    side.step(side.plan(), begins_late=begins_late)
    for extent in side.extents():
        assert extent[24:40] == side.leader._namespace.digest
    assert side.leader.lookup(View("b", TOKENS), 0) == len(TOKENS)


def test_a_reset_before_the_result_has_come_leaves_nothing(start):
    side = start(save="layers")
    plan = side.plan()
    side.worker.before_forward(plan)
    side.worker.begin_step(plan)
    for layer in EACH:
        side.worker.store_layer(layer)
    side.leader.reset()
    side.worker.end_forward(plan)
    side.hear()
    assert side.leader.lookup(View("b", TOKENS), 0) == 0
    side.step(side.plan("b"))
    assert side.leader.lookup(View("c", TOKENS), 0) == len(TOKENS)
    assert not side.leader.has_pending


def test_pages_that_the_next_step_overwrites_were_read(start):
    """Its request is preempted or ends, and another one gets them."""
    side = start(save="layers")
    side.step(side.plan())
    expected = side.extents()
    side.leader.finish("a")
    other = [9000 + token for token in TOKENS]
    plan = side.plan("b", other)
    side.truth = [layer + 1 for layer in side.truth]
    side.step(plan)
    assert side.extents() == expected
    assert side.extents(other) != expected


def test_a_forward_that_is_broken_off_costs_its_blocks_alone(start):
    side = start(save="layers")
    plan = side.plan()
    side.worker.before_forward(plan)
    side.worker.begin_step(plan)
    side.worker.store_layer(0)
    other = [9000 + token for token in TOKENS]
    side.leader.finish("a")
    side.step(side.plan("b", other))
    assert side.leader.lookup(View("c", TOKENS), 0) == 0
    assert side.leader.lookup(View("d", other), 0) == len(TOKENS)
    side.worker.store_layer(0)  # nobody began anything
    assert not side.leader.has_pending


def test_a_shutdown_in_the_middle_of_a_forward_ends(start):
    side = start(save="layers")
    plan = side.plan()
    side.worker.before_forward(plan)
    side.worker.store_layer(0)
    side.worker.shutdown()
    side.worker.store_layer(1)


def test_an_engine_that_does_not_tell_of_the_forward_in_time_is_stored_behind_it(start):
    side, behind = start(save="layers"), start()
    behind.step(behind.plan())
    plan = side.plan()
    side.worker.begin_step(plan)
    for layer in EACH:
        side.pages[layer][PAGES] = side.truth[layer][PAGES]
        side.worker.store_layer(layer)
    side.worker.end_forward(plan)
    side.hear()
    assert side.n_gathers == 0
    assert side.extents() == behind.extents()


@pytest.mark.parametrize("onboard", ["layered", "async"])
def test_what_was_stored_by_layers_is_loaded_either_way(start, onboard):
    side = start(save="layers", onboard=onboard)
    side.step(side.plan())
    side.leader.finish("a")
    for layer in side.pages:
        layer.zero_()
    longer = [*TOKENS, *range(500, 500 + BLOCK)]
    view, pages = View("b", longer), list(range(10, 10 + len(longer) // PAGE))
    assert side.leader.lookup(view, 0) == len(TOKENS)
    side.leader.admit("b", pages, len(TOKENS))
    while True:
        plan = side.leader.plan_step([], is_idle=True) if onboard == "async" else None
        if plan is None:
            break
        side.worker.before_forward(plan)
        side.worker.begin_step(plan)
        side.worker.end_forward(plan)
        if side.hear().finished:
            break
    fresh = pages[len(PAGES) :]
    progress = Progress("b", pages, True, len(longer))
    plan = side.leader.plan_step([(view, progress)], is_idle=False)
    assert [t.route for t in plan.layered] == ([Route.HOST_TO_DEVICE] if onboard == "layered" else [])
    side.step(plan, fresh)
    while side.leader.has_pending:
        side.hear()
    for layer in EACH:
        assert torch.equal(side.pages[layer][pages[: len(PAGES)]], side.truth[layer][PAGES])
    assert len(side.extents(longer)) == len(longer) // BLOCK


def test_what_is_computed_on_a_load_that_failed_is_not_kept(start):
    side = start(save="layers", onboard="layered")
    side.step(side.plan())
    side.leader.finish("a")
    chain = HashChain(NAMESPACE.digest, BLOCK)
    chain.append(TOKENS)
    with side.leader.manager.host.match(chain.hashes) as lease:
        side.worker._arena.slot(lease.slots[1])[40:56] = bytes(16)  # its header is of another block
    longer = [*TOKENS, *range(500, 500 + BLOCK)]
    view, pages = View("b", longer), list(range(10, 10 + len(longer) // PAGE))
    assert side.leader.lookup(view, 0) == len(TOKENS)
    side.leader.admit("b", pages, len(TOKENS))
    plan = side.leader.plan_step([(view, Progress("b", pages, True, len(longer)))], is_idle=False)
    before = side.n_gathers
    side.step(plan, pages[len(PAGES) :])
    assert side.n_gathers == before + N_LAYERS  # it was copied, and is dropped all the same
    while side.leader.has_pending:
        side.hear()
    assert side.leader.lookup(View("c", longer), 0) == BLOCK
