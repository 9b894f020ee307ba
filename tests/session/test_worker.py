"""A worker on the CPU, without an engine: what it answers when it is called, and when it is not."""

import fcntl

import pytest
import torch

from tenuto.config import load_config
from tenuto.connectors.session import Leader, Progress, Setup, Worker
from tenuto.connectors.session import worker as worker_module
from tenuto.errors import Cause, ConfigError
from tests.session.session_rig import BLOCK, LAYOUT, NAMESPACE, PAGE, View

pytestmark = pytest.mark.unit

TOKENS = list(range(3 * BLOCK))
PAGES = range(1, 1 + len(TOKENS) // PAGE)


@pytest.fixture
def engine():
    """A leader and its worker beside two layers of 16 pages with random content."""
    config = load_config({"tiers": {"host": {"capacity": 16 * LAYOUT.extent_bytes}}})
    setup = Setup(config, NAMESPACE, LAYOUT, PAGE, "e")
    leader, worker = Leader(setup), Worker(setup)
    worker.register([torch.randn(16, 1, PAGE, 32) for _ in range(2)])
    leader.connect({0: worker.handshake()})
    yield leader, worker
    worker.shutdown()


def plan_of(leader):
    """A step that computes the prompt."""
    return leader.plan_step([(View("a", TOKENS), Progress("a", PAGES, True, len(TOKENS)))], is_idle=False)


def hear(leader, worker):
    worker.poll()
    report = worker.report()
    leader.receive(report)
    leader.check()
    return report


def test_a_step_that_is_carried_out_keeps_its_blocks(engine):
    leader, worker = engine
    plan = plan_of(leader)
    worker.before_forward(plan)
    worker.begin_step(plan)
    worker.end_forward(plan)
    hear(leader, worker)
    assert leader.lookup(View("b", TOKENS), 0) == len(TOKENS)
    assert not leader.has_pending


def test_copies_after_a_forward_that_nobody_told_of_are_given_up_at_the_next_step(engine):
    leader, worker = engine
    plan = plan_of(leader)
    worker.before_forward(plan)
    worker.begin_step(plan)
    worker.begin_step(leader.plan_step([], is_idle=True))
    report = hear(leader, worker)
    ((result,),) = report.results.values()
    assert {failure.cause for failure in result.failures} == {Cause.CANCELLED}
    assert not leader.has_pending
    assert leader.lookup(View("b", TOKENS), 0) == 0


def test_pages_that_nobody_let_us_save_in_time_are_not_read_later(engine):
    leader, worker = engine
    view = View("a", TOKENS[:BLOCK])
    leader.plan_step([(view, Progress("a", PAGES, True, BLOCK - 1))], is_idle=False)
    view.n_prompt_tokens = 0  # its block counts as generated, so it is held back
    leader.plan_step([(view, Progress("a", (), False, BLOCK))], is_idle=False)
    leader.finish("a")
    plan = leader.plan_step([], is_idle=True)
    assert plan.before_forward
    worker.begin_step(plan)
    ((result,),) = hear(leader, worker).results.values()
    assert result.failures[0].cause is Cause.CANCELLED
    assert not leader.has_pending


class _Closing:
    """Counts how often it is closed."""

    n_closed = 0

    def close(self):
        self.n_closed += 1


@pytest.mark.parametrize("is_drained", [True, False])
def test_the_arena_is_closed_at_shutdown_unless_something_may_still_copy(engine, monkeypatch, is_drained):
    _, worker = engine
    worker._arena = arena = _Closing()
    monkeypatch.setattr(worker._engine, "drain", lambda _: is_drained)
    worker.shutdown()
    worker.shutdown()
    assert arena.n_closed == is_drained


def test_a_device_that_is_refused_leaves_nothing_open_or_pinned(tmp_path, monkeypatch):
    arena = _Closing()
    monkeypatch.setattr(worker_module, "make_arena", lambda *_: arena)
    monkeypatch.setattr(worker_module, "make_device", _refuse)
    tiers = {"host": {"capacity": 16 * LAYOUT.extent_bytes}, "disk": {"path": str(tmp_path), "capacity": "16 MiB"}}
    setup = Setup(load_config({"tiers": tiers}), NAMESPACE, LAYOUT, PAGE, "e")
    with pytest.raises(ConfigError, match="too large"):
        Worker(setup).register([torch.randn(16, 1, PAGE, 32) for _ in range(2)])
    assert arena.n_closed == 1
    (lock,) = tmp_path.glob("*/*/rank-0/lock")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds the folder


def _refuse(*_):
    raise ConfigError("tiers.device.load_ring: too large")
