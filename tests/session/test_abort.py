"""A request may end, or lose its pages, between any two moments of a load and of a store: nothing is left of it."""

import pytest

from tenuto.connectors.session import Progress, WorkerReport
from tenuto.transfers.plan import Route, TransferResult
from tests.session.session_rig import BLOCK, PAGE, Rig, View

pytestmark = pytest.mark.unit

TOKENS = list(range(4 * BLOCK))
PAGES = list(range(50, 50 + 4 * BLOCK // PAGE))


def answer(rig, transfer):
    """One transfer has ended well."""
    rig.leader.receive(WorkerReport({transfer.id: [TransferResult(transfer.id)]}))
    rig.leader.check()


def assert_nothing_left(rig):
    figures = rig.leader.statistics()
    assert not any(figures[name] for name in ("host.leased", "disk.leased", "requests", "flights", "backlog"))
    assert not rig.leader.has_pending
    assert not rig.leader._loading


@pytest.mark.parametrize("moment", ["asked", "admitted", "planned", "in host memory", "on the device", "running"])
@pytest.mark.parametrize("n_ends", [1, 2])
def test_a_request_may_end_at_every_moment_of_a_disk_load(moment, n_ends):
    rig, view = Rig(), View("a", TOKENS)
    rig.compute(View("first", TOKENS))
    rig.leader.manager.host.reset()
    transfers = []

    def load():
        yield "asked", rig.leader.lookup(view, 0)
        yield "admitted", rig.leader.admit("a", PAGES, len(TOKENS))
        transfers.extend(rig.step().now)
        assert [t.route for t in transfers] == [Route.DISK_TO_HOST, Route.HOST_TO_DEVICE]
        yield "planned", None
        yield "in host memory", answer(rig, transfers.pop(0))
        yield "on the device", answer(rig, transfers.pop(0))
        rig.leader.admit("a", PAGES, 0)
        yield "running", rig.answer(rig.step((view, len(TOKENS))))

    for name, _ in load():
        if name == moment:
            break
    for _ in range(n_ends):
        rig.leader.finish("a")  # an abort may come for a request that has just finished
    rig.leader.check()
    transfers += rig.step().now
    for transfer in transfers:
        answer(rig, transfer)
    assert_nothing_left(rig)
    assert rig.leader.lookup(View("b", TOKENS), 0) == len(TOKENS)
    rig.leader.finish("b")
    assert_nothing_left(rig)


@pytest.mark.parametrize("moment", ["planned", "staged", "written"])
def test_a_request_may_end_at_every_moment_of_a_store_and_its_blocks_are_kept(moment):
    rig, view = Rig(), View("a", TOKENS)
    stage, write = rig.step((view, len(TOKENS))).after_forward
    assert (stage.route, write.route) == (Route.DEVICE_TO_HOST, Route.HOST_TO_DISK)
    for name, transfer in (("planned", None), ("staged", stage), ("written", write)):
        if transfer is not None:
            answer(rig, transfer)
        if name == moment:
            rig.leader.finish("a")
            rig.leader.check()
    assert_nothing_left(rig)
    assert rig.leader.statistics()["host.registered"] == rig.leader.statistics()["disk.registered"] == 4


def test_a_request_preempted_right_after_its_load_loads_again_with_what_it_generated():
    rig, view = Rig(), View("a", list(TOKENS))
    rig.compute(View("first", TOKENS))
    rig.leader.admit("a", PAGES, rig.leader.lookup(view, 0))
    rig.answer(rig.step())
    rig.leader.admit("a", PAGES, 0)
    view.tokens += range(900, 900 + BLOCK)
    rig.answer(rig.step((view, 5 * BLOCK)))
    assert rig.leader.lookup(view, 0) == 5 * BLOCK  # preempted: it asks again, for its answer too
    fresh = list(range(200, 200 + 5 * BLOCK // PAGE))
    rig.leader.admit("a", fresh, 5 * BLOCK)
    plan = rig.step()
    assert [page for t in plan.now for run in t.pages for page in run.pages] == fresh
    rig.answer(plan)
    rig.leader.admit("a", fresh, 0)
    assert rig.leader.plan_step([(view, Progress("a", fresh, True, 5 * BLOCK))], is_idle=False).after_forward == ()
    rig.leader.finish("a")
    assert_nothing_left(rig)


def test_a_request_that_was_promised_a_hit_and_found_no_room_may_come_back_with_pages_of_its_own():
    """The engine's own cache grew meanwhile: the old promise is given back, the new one is smaller."""
    rig, view = Rig(), View("a", TOKENS)
    rig.compute(View("first", TOKENS))
    assert rig.leader.lookup(view, 0) == 4 * BLOCK
    assert rig.leader.lookup(view, 2 * BLOCK) == 2 * BLOCK
    assert rig.leader.statistics()["host.leased"] == 2
    assert rig.leader.lookup(view, 4 * BLOCK) == 0
    rig.leader.admit("a", PAGES, 0)
    rig.answer(rig.step((view, 4 * BLOCK)))
    rig.leader.finish("a")
    assert_nothing_left(rig)


def test_a_step_without_scheduled_requests_has_nothing_to_do_behind_the_forward():
    """vLLM 0.27 does not call `wait_for_save` in such steps."""
    rig, view = Rig(write_window=1), View("a", TOKENS)  # one block at a time: the rest waits in the backlog
    plan = rig.step((view, len(TOKENS)))
    rig.leader.finish("a")
    n_idle = 0
    while True:
        assert plan.after_forward == () or n_idle == 0
        rig.answer(plan)
        if not rig.leader.has_pending:
            break
        plan, n_idle = rig.step(), n_idle + 1
    assert n_idle == 3
    assert rig.leader.statistics()["disk.registered"] == 4
