"""The lives of requests, as a scheduler leads them."""

import pytest

from tenuto.connectors.session import Progress, StepPlan, WorkerReport
from tenuto.errors import Cause
from tenuto.tokens import ExtraKeys, HashChain, MediaSpan
from tenuto.transfers.plan import Route
from tests.session.session_rig import BLOCK, NAMESPACE, PAGE, Rig, View

pytestmark = pytest.mark.unit

TOKENS = list(range(5 * BLOCK))
PER = BLOCK // PAGE


@pytest.fixture
def rig():
    """Blocks of `TOKENS` are in host memory."""
    rig = Rig()
    rig.compute(View("first", TOKENS))
    return rig


def staged(plan: StepPlan) -> list[tuple[int, ...]]:
    """Pages of the blocks that are staged."""
    return [run.pages for t in plan.after_forward if t.route is Route.DEVICE_TO_HOST for run in t.pages]


def step(rig: Rig, view: View, n_computed: int, pages, *, is_whole: bool) -> StepPlan:
    plan = rig.leader.plan_step([(view, Progress(view.request_id, pages, is_whole, n_computed))], is_idle=False)
    rig.answer(plan)
    return plan


def test_after_idleness_a_step_is_waited_for_that_may_bring_news_of_other_engines():
    rig, view = Rig(poll_s=2.0), View("a", TOKENS)
    rig.clock.advance(2.0)
    assert rig.leader.lookup(view, 0) == 0
    rig.clock.advance(0.1)
    assert rig.leader.lookup(view, 0) is None
    rig.step()
    chain = HashChain(NAMESPACE.digest, BLOCK)
    chain.append(TOKENS)
    rig.leader.receive(WorkerReport(peers={0: {"b": [(i, chain.key(i)) for i in range(5)]}}))
    assert rig.leader.lookup(view, 0) == len(TOKENS)


def test_a_prompt_of_whole_blocks_is_promised_to_its_last_token(rig):
    """The engine computes the last token again by itself."""
    assert rig.leader.lookup(View("a", TOKENS), 0) == len(TOKENS)


def test_an_asynchronous_load_is_admitted_twice_and_loaded_once(rig):
    view = View("a", TOKENS)
    rig.leader.admit("a", list(range(10)), rig.leader.lookup(view, 0))
    plan = rig.step()
    assert [t.route for t in plan.now] == [Route.HOST_TO_DEVICE]
    rig.answer(plan)
    rig.leader.admit("a", list(range(10)), 0)  # the engine says so once more when it schedules the request
    assert rig.step().now == ()
    rig.leader.finish("a")
    rig.leader.check()


def test_a_load_from_inside_a_block_leaves_the_engines_own_pages_alone(rig):
    view = View("a", TOKENS)
    n_computed = 2 * BLOCK + PAGE
    n = rig.leader.lookup(view, n_computed)
    assert n == len(TOKENS) - n_computed
    rig.leader.admit("a", list(range(700, 710)), n)
    (load,) = rig.step().now
    assert [(run.pages, run.first) for run in load.pages] == [((704, 705), 1), ((706, 707), 0), ((708, 709), 0)]


def test_a_load_takes_no_page_beyond_what_was_promised(rig):
    longer = View("a", [*TOKENS, *range(900, 900 + 3 * BLOCK)])
    n = rig.leader.lookup(longer, 0)
    assert n == len(TOKENS)
    rig.leader.admit("a", list(range(16)), n)
    (load,) = rig.step().now
    assert [page for run in load.pages for page in run.pages] == list(range(10))


def test_pages_come_in_parts_as_a_request_goes_on():
    rig, view = Rig(), View("a", TOKENS)
    assert staged(step(rig, view, BLOCK + 1, [7, 3, 9], is_whole=True)) == [(7, 3)]
    assert staged(step(rig, view, 2 * BLOCK - 1, [], is_whole=False)) == []
    assert staged(step(rig, view, 3 * BLOCK, [1, 4, 2], is_whole=False)) == [(9, 1), (4, 2)]


def test_a_request_that_lost_its_pages_comes_back_with_a_new_table():
    rig, view = Rig(), View("a", TOKENS)
    step(rig, view, 2 * BLOCK, [7, 3, 9, 1], is_whole=True)
    assert staged(step(rig, view, BLOCK, [20, 21], is_whole=True)) == []  # preempted, computed again: kept already
    assert staged(step(rig, view, 3 * BLOCK, [22, 23, 24, 25], is_whole=False)) == [(24, 25)]


def test_generated_tokens_are_kept_as_they_come():
    rig, view = Rig(), View("a", TOKENS[: BLOCK + 2])
    step(rig, view, BLOCK + 2, [0, 1, 2], is_whole=True)
    view.tokens += range(BLOCK + 2, 2 * BLOCK)
    assert staged(step(rig, view, 2 * BLOCK, [3], is_whole=False)) == [(2, 3)]
    assert rig.leader.lookup(View("b", TOKENS), 0) == 2 * BLOCK


def test_a_loaded_request_stages_only_what_it_computes_itself(rig):
    view = View("a", [*TOKENS, *range(900, 900 + BLOCK)])
    rig.leader.admit("a", list(range(12)), rig.leader.lookup(view, 0))
    rig.answer(rig.step())
    assert staged(step(rig, view, 6 * BLOCK, range(12), is_whole=True)) == [(10, 11)]


def test_a_request_that_ends_while_it_loads_leaves_its_transfers_to_end(rig):
    rig.leader.admit("a", list(range(10)), rig.leader.lookup(View("a", TOKENS), 0))
    plan = rig.step()
    rig.leader.finish("a")
    assert rig.leader.statistics()["host.leased"] == 5
    rig.answer(plan)
    assert rig.leader.statistics()["host.leased"] == 0
    assert rig.leader.statistics()["requests"] == 0


def test_an_unknown_request_is_admitted_and_finished_in_silence():
    rig = Rig()
    rig.leader.admit("nobody", [1], 8)
    rig.leader.finish("nobody")
    assert rig.step() == StepPlan(is_idle=True)


def test_a_hit_survives_steps_in_which_the_engine_had_no_room(rig):
    view = View("a", TOKENS)
    n = rig.leader.lookup(view, 0)
    for _ in range(3):
        rig.answer(rig.step((View("other", [5000 + t for t in TOKENS]), 5 * BLOCK)))
        assert rig.leader.lookup(view, 0) == n
    rig.leader.admit("a", list(range(10)), n)
    rig.answer(rig.step())


def test_two_waiting_requests_with_one_prompt_on_disk_both_load_it(rig):
    """Both were promised it before either had memory."""
    rig.leader.manager.host.reset()
    for name in ("a", "b"):
        assert rig.leader.lookup(View(name, TOKENS), 0) == len(TOKENS)
    for name in ("a", "b"):
        rig.leader.admit(name, list(range(10)), len(TOKENS))
    plan = rig.step()
    assert [t.route for t in plan.now] == [Route.DISK_TO_HOST, Route.HOST_TO_DEVICE, Route.DISK_TO_DEVICE]
    assert [len(awaited) for _, awaited in plan.loads] == [1, 1]
    rig.answer(plan)


@pytest.mark.parametrize(
    "extra", [ExtraKeys("sql", "f00d"), ExtraKeys(salt="x"), ExtraKeys(media=(MediaSpan("c", 0, 2),))]
)
def test_another_adapter_salt_or_image_shares_nothing(rig, extra):
    view = View("a", TOKENS)
    view.extra = extra
    assert rig.leader.lookup(view, 0) == 0


def test_prompts_that_differ_late_share_their_beginning(rig):
    assert rig.leader.lookup(View("a", [*TOKENS[: 3 * BLOCK + 2], 9999, *range(50)]), 0) == 3 * BLOCK


def test_a_hit_is_dropped_by_a_reset_and_the_request_never_kept(rig):
    view = View("a", TOKENS)
    rig.leader.lookup(view, 0)
    rig.leader.reset()
    assert rig.leader.statistics()["host.leased"] == 0
    assert rig.leader.lookup(view, 0) == 0
    assert rig.step((view, 5 * BLOCK)).after_forward == ()
    rig.leader.finish("a")
    plan = rig.step((View("a", TOKENS), 5 * BLOCK))
    assert len(staged(plan)) == 5  # the name was used again: another request


def test_every_reset_is_sent_once_and_differs_from_the_last():
    rig = Rig()
    rig.leader.reset()
    assert rig.leader.has_pending
    first = rig.step().resets
    assert not rig.leader.has_pending
    rig.leader.reset()
    rig.leader.reset()
    second = rig.step().resets
    assert (len(first), len(second), rig.step().resets) == (1, 2, ())
    epochs = [reset.epoch for reset in (*first, *second)]
    assert len(set(epochs)) == len({reset.namespace for reset in (*first, *second)}) == 3
    assert 0 not in epochs


def test_statistics_count_tokens_and_loads(rig):
    rig.leader.admit("a", list(range(10)), rig.leader.lookup(View("a", TOKENS), 0))
    figures = rig.leader.statistics()
    assert (figures["tokens.asked"], figures["tokens.found.host"], figures["loads"]) == (len(TOKENS), len(TOKENS), 1)


def test_a_failed_load_does_not_stop_others_nor_what_the_request_computes_then(rig):
    view = View("a", TOKENS)
    rig.leader.admit("a", list(range(10)), rig.leader.lookup(view, 0))
    rig.answer(rig.step(), failed={Route.HOST_TO_DEVICE: {1: Cause.CORRUPT}})
    assert rig.leader.lookup(View("b", TOKENS), 0) == 5 * BLOCK  # host memory lost block 1, the disk has it
    assert staged(step(rig, view, 5 * BLOCK, range(10), is_whole=True)) == [(2, 3)]
