"""The scheduler side: what it promises an engine, what it sends, what it makes of results."""

import pickle
from dataclasses import replace

import pytest

from tenuto.connectors.session import Handshake, Leader, WorkerReport
from tenuto.errors import Cause, ConfigError
from tenuto.tiers.store import Capacity
from tenuto.tokens import BlockHash, BlockKey
from tenuto.transfers.plan import Route, TransferResult
from tests.session.session_rig import BLOCK, LAYOUT, NAMESPACE, PAGE, Rig, View

pytestmark = pytest.mark.unit

TOKENS = list(range(5 * BLOCK + 3))


def load(rig, view, n_computed=0):
    """Look up, admit, and plan the step: (tokens promised, plan)."""
    n = rig.leader.lookup(view, n_computed)
    if n:
        rig.leader.admit(view.request_id, list(range(500, 500 + (n_computed + n) // PAGE)), n)
    return n, rig.step()


def test_what_was_computed_once_is_promised_next_time():
    rig = Rig()
    rig.compute(View("a", TOKENS))
    n, plan = load(rig, View("b", TOKENS))
    assert n == 5 * BLOCK
    (transfer,) = plan.now
    assert transfer.route is Route.HOST_TO_DEVICE
    assert [run.pages for run in transfer.pages] == [(500 + 2 * i, 501 + 2 * i) for i in range(5)]
    assert plan.loads == (("b", frozenset([transfer.id])),)
    rig.answer(plan)


def test_only_full_blocks_and_only_what_is_computed_are_kept():
    rig = Rig()
    view = View("a", TOKENS)
    assert [len(t.keys) for t in rig.step((view, BLOCK - 1)).after_forward] == []
    plan = rig.step((view, 3 * BLOCK + 1))
    assert [(t.route, len(t.keys)) for t in plan.after_forward] == [(Route.DEVICE_TO_HOST, 3), (Route.HOST_TO_DISK, 3)]
    assert plan.after_forward[0].pages[1].pages == (102, 103)
    rig.answer(plan)
    plan = rig.step((view, 5 * BLOCK))
    assert [len(t.keys) for t in plan.after_forward] == [2, 2]


def test_tokens_that_an_engine_runs_ahead_of_are_not_kept():
    rig = Rig()
    assert rig.step((View("a", TOKENS[: 2 * BLOCK - 1]), 2 * BLOCK)).after_forward[0].keys.__len__() == 1


def test_the_trailing_block_is_left_out_when_its_tokens_may_change():
    rig = Rig(keeps_trailing=False)
    plan = rig.step((View("a", TOKENS), 3 * BLOCK))
    assert [len(t.keys) for t in plan.after_forward] == [2, 2]


def test_generated_tokens_are_kept_or_not_as_set():
    grown = View("a", TOKENS, n_prompt=2 * BLOCK)
    assert len(Rig().step((grown, 5 * BLOCK)).after_forward[0].keys) == 5
    assert len(Rig(cache_generated=False).step((grown, 5 * BLOCK)).after_forward[0].keys) == 2


def test_a_load_may_begin_inside_a_block():
    rig = Rig()
    rig.compute(View("a", TOKENS))
    n, plan = load(rig, View("b", TOKENS), n_computed=BLOCK + PAGE)
    assert n == 4 * BLOCK - PAGE
    runs = plan.now[0].pages
    assert len(runs) == 4
    assert [run.first for run in runs] == [1, 0, 0, 0]


def test_what_the_engine_has_already_is_no_hit():
    rig = Rig()
    rig.compute(View("a", TOKENS))
    assert rig.leader.lookup(View("b", TOKENS), 5 * BLOCK) == 0
    assert rig.leader.lookup(View("c", TOKENS), 4 * BLOCK) == BLOCK
    rig.leader.finish("c")
    rig.leader.check()


def test_asking_twice_gives_one_answer_and_one_lease():
    rig = Rig()
    rig.compute(View("a", TOKENS))
    view = View("b", TOKENS)
    assert [rig.leader.lookup(view, 0) for _ in range(3)] == [5 * BLOCK] * 3
    assert rig.leader.lookup(view, BLOCK) == 4 * BLOCK  # the engine's own cache has grown meanwhile
    rig.leader.finish("b")
    rig.leader.check()
    assert rig.leader.statistics()["host.leased"] == 0


def test_admitting_without_tokens_gives_the_hit_back():
    rig = Rig()
    rig.compute(View("a", TOKENS))
    rig.leader.lookup(View("b", TOKENS), 0)
    rig.leader.admit("b", [], 0)
    rig.leader.admit("b", [], 0)
    assert rig.leader.statistics()["host.leased"] == 0


def test_requests_that_must_not_read_or_cannot_be_told_get_nothing():
    rig = Rig()
    rig.compute(View("a", TOKENS))
    blind, strange = View("b", TOKENS), View("c", TOKENS)
    blind.may_read = strange.is_cacheable = False
    assert rig.leader.lookup(blind, 0) == rig.leader.lookup(strange, 0) == 0
    assert rig.step((strange, 3 * BLOCK)).after_forward == ()
    assert len(rig.step((View("d", TOKENS, salt="s"), 3 * BLOCK)).after_forward[0].keys) == 3


def test_a_load_that_failed_is_not_tried_again_for_that_request():
    rig = Rig()
    rig.compute(View("a", TOKENS))
    view = View("b", TOKENS)
    _, plan = load(rig, view)
    rig.answer(plan, failed={Route.HOST_TO_DEVICE: {2: Cause.TIMEOUT}})
    assert rig.leader.lookup(view, 0) == 0
    assert rig.leader.lookup(View("c", TOKENS), 0) == 5 * BLOCK


def test_a_request_waits_while_its_blocks_are_on_their_way_and_no_longer():
    rig = Rig()
    rig.compute(View("a", TOKENS))
    rig.leader.manager.host.reset()  # now on disk alone
    _, plan = load(rig, View("b", TOKENS))
    bring, to_device = plan.now
    late = View("c", TOKENS)
    assert rig.leader.lookup(late, 0) is None
    timeout = {Route.HOST_TO_DEVICE: dict.fromkeys(range(5), Cause.TIMEOUT)}
    rig.answer(type(plan)(now=(to_device,)), failed=timeout)
    assert rig.leader.lookup(late, 0) == 0  # overdue: not worth waiting for
    rig.answer(type(plan)(now=(bring,)))
    assert rig.leader.lookup(View("d", TOKENS), 0) == 5 * BLOCK


def test_all_ranks_must_have_every_block():
    rig = Rig(world_size=2)
    plan = rig.step((View("a", TOKENS), 3 * BLOCK))
    stage, write = plan.after_forward
    half = WorkerReport(results={stage.id: [TransferResult(stage.id)]})
    rig.leader.receive(half)
    assert rig.leader.statistics()["host.registered"] == 0
    rig.leader.receive(half)
    assert rig.leader.statistics()["host.registered"] == 3
    rig.answer(type(plan)(now=(write,)), failed={Route.HOST_TO_DISK: {1: Cause.IO_ERROR}})
    assert rig.leader.statistics()["disk.registered"] == 2


def test_a_reset_hides_everything_and_running_requests_keep_nothing_old():
    rig = Rig()
    running = View("a", TOKENS)
    rig.answer(rig.step((running, 3 * BLOCK)))
    on_its_way = rig.step((running, 5 * BLOCK))
    rig.leader.reset()
    plan = rig.step((running, 5 * BLOCK))
    assert plan.after_forward == ()
    assert len(plan.resets) == 1
    assert plan.resets[0].namespace not in (NAMESPACE.digest, b"")
    rig.answer(on_its_way)
    assert rig.leader.statistics()["host.registered"] == 0
    assert rig.leader.lookup(View("b", TOKENS), 0) == 0
    rig.compute(View("c", TOKENS))
    assert rig.leader.lookup(View("d", TOKENS), 0) == 5 * BLOCK


def shake(**changes):
    fields = {
        "rank": 0, "extent_bytes": LAYOUT.extent_bytes, "namespace": NAMESPACE.digest, "disk": Capacity(8, True),
        "recovered": [], "peers": {},
    }  # fmt: skip
    return Handshake(**(fields | changes))


def key(n):
    return BlockKey(BlockHash(bytes([n]) * 16), BlockHash(b"p" * 16), BlockHash(b"q" * 16))


def test_blocks_that_every_rank_found_in_one_slot_are_recovered():
    rig = Rig(world_size=2)
    mine = [(0, key(1)), (1, key(2)), (5, key(3)), (7, key(4))]
    other = [(0, key(1)), (1, key(9)), (6, key(3))]
    rig.leader.connect({0: shake(recovered=mine), 1: shake(rank=1, recovered=other, disk=Capacity(6, True))})
    assert rig.leader.statistics()["disk.registered"] == 1
    assert key(1).hash in rig.leader.manager.disk


@pytest.mark.parametrize("changes", [{"extent_bytes": 1}, {"namespace": b"x" * 16}])
def test_a_rank_that_sees_another_model_is_refused_in_one_line(changes):
    with pytest.raises(ConfigError, match=r"^rank 3 sees another model .* same model folder") as raised:
        Rig().leader.connect({3: shake(rank=3, **changes)})
    assert "\n" not in str(raised.value)


def test_plans_and_reports_travel_by_pickle():
    rig = Rig()
    plan = rig.step((View("a", TOKENS), 3 * BLOCK))
    assert pickle.loads(pickle.dumps(plan)) == plan
    report = WorkerReport(
        results={1: [TransferResult(1)]}, disks={0: Capacity(1, False)}, peers={0: {"b": [(0, key(1))]}}
    )
    assert pickle.loads(pickle.dumps(report)) == report


def test_steps_go_on_while_something_is_on_its_way():
    rig = Rig()
    assert not rig.leader.has_pending
    plan = rig.step((View("a", TOKENS), 3 * BLOCK))
    assert rig.leader.has_pending
    rig.answer(plan)
    assert not rig.leader.has_pending


def test_a_growing_disk_is_waited_for_and_one_without_room_is_not():
    rig = Rig(disk_slots=0)
    rig.grow(0, is_growing=True)
    view = View("a", TOKENS)
    plan = rig.step((view, 5 * BLOCK))
    assert [t.route for t in plan.after_forward] == [Route.DEVICE_TO_HOST]
    rig.answer(plan)
    assert rig.step().now == ()
    assert rig.leader.has_pending
    rig.grow(4, is_growing=True)
    plan = rig.step()
    assert [len(t.keys) for t in plan.now] == [4]
    rig.answer(plan)
    rig.grow(4, is_growing=False)
    rig.answer(rig.step())
    rig.step()
    assert rig.leader.statistics()["backlog"] == 0


@pytest.mark.parametrize(("n_more", "n_lines"), [(0, 0), (1, 1)])
def test_that_the_longest_prompt_does_not_fit_is_logged_at_start(our_log, n_more, n_lines):
    setup = Rig().leader.setup
    longest = setup.n_host_slots * BLOCK
    Leader(replace(setup, max_model_len=longest + n_more)).connect({})
    lines = [record.getMessage() for record in our_log() if "max_model_len" in record.getMessage()]
    assert len(lines) == n_lines


def test_a_leader_that_no_worker_told_of_the_disk_leaves_it_alone(our_log):
    """Under another connector's parent, its workers' words may be all that comes."""
    rig = Rig()
    leader = Leader(rig.leader.setup)
    leader.connect({})
    leader.receive(WorkerReport(disks={0: Capacity(64, is_growing=False)}))
    assert leader.statistics()["disk.total"] == 0  # slots whose content nobody told of are not written over
    assert [r.levelname for r in our_log() if "the disk tier is off" in r.getMessage()] == ["WARNING"]
