"""When blocks leave: those of prompts at once, generated ones when they are many, old, or about to be overwritten."""

import pytest

from tenuto.connectors.session import Progress
from tenuto.connectors.session.filling import MANY, MAX_STEPS
from tenuto.transfers.plan import Route
from tests.session.session_rig import BLOCK, PAGE, Rig, View

pytestmark = pytest.mark.unit

PROMPT = list(range(2 * BLOCK))
PAGES = range(100, 100 + 3 * BLOCK // PAGE)


def staged(transfers):
    """Pages of the blocks that these stage."""
    return [run.pages for t in transfers if t.route is Route.DEVICE_TO_HOST for run in t.pages]


def step(rig, *progress, preempted=()):
    plan = rig.leader.plan_step(progress, is_idle=False, preempted=preempted)
    rig.answer(plan)
    return plan


@pytest.fixture
def rig():
    return Rig(n_host=4 * MANY)


@pytest.fixture
def view(rig):
    """A request whose prompt is computed and kept, and that has now generated a block."""
    view = View("a", list(PROMPT))
    plan = step(rig, (view, Progress("a", PAGES, True, len(PROMPT))))
    assert staged(plan.after_forward) == [tuple(PAGES[:2]), tuple(PAGES[2:4])]  # a prompt's blocks wait for nothing
    view.tokens += [7] * (BLOCK + 1)
    plan = step(rig, (view, Progress("a", (), False, 3 * BLOCK)))
    assert plan.after_forward == ()
    return view


GENERATED = [tuple(PAGES[4:6])]


def test_a_generated_block_leaves_after_some_steps(rig, view):
    for _ in range(MAX_STEPS - 2):
        assert step(rig).after_forward == ()
    assert staged(step(rig).after_forward) == GENERATED
    assert step(rig).after_forward == ()


def test_many_leave_together_at_once(rig):
    views = [View(f"r{i}", [i] * BLOCK) for i in range(MANY)]
    tables = [range(4 * i, 4 * i + 4) for i in range(MANY)]
    step(rig, *((v, Progress(v.request_id, table, True, BLOCK)) for v, table in zip(views, tables, strict=True)))
    for view in views:
        view.tokens += [7] * BLOCK
    ends = [(view, Progress(view.request_id, (), False, 2 * BLOCK)) for view in views]
    assert step(rig, *ends[:-1]).after_forward == ()
    plan = step(rig, ends[-1])
    assert staged(plan.after_forward) == [tuple(table[2:]) for table in tables]


def test_it_is_saved_before_the_next_step_when_its_request_ends_and_others_wait_for_it(rig, view):
    rig.leader.finish("a")
    assert rig.leader.has_pending
    again = View("b", view.tokens)
    assert rig.leader.lookup(again, 0) is None  # on its way
    plan = step(rig)
    assert staged(plan.before_forward) == GENERATED
    assert rig.leader.lookup(again, 0) == 3 * BLOCK


def test_it_is_saved_before_the_step_that_preempts_its_request(rig, view):
    plan = step(rig, preempted=["a"])
    assert staged(plan.before_forward) == GENERATED
    resumed = step(rig, (view, Progress("a", range(200, 206), True, 3 * BLOCK)))
    assert (staged(resumed.before_forward), staged(resumed.after_forward)) == ([], [])


def test_it_is_saved_from_its_old_pages_when_its_request_is_found_again_before_the_plan(rig, view):
    """As after a reset of the engine's cache under running requests."""
    n = rig.leader.lookup(view, 0)
    assert n == len(PROMPT)
    rig.leader.admit("a", range(200, 200 + n // PAGE), n)
    plan = step(rig, preempted=["a"])
    assert staged(plan.before_forward) == GENERATED


def test_steps_without_a_forward_have_nothing_after_it(rig, view):
    for _ in range(2 * MAX_STEPS):
        assert rig.leader.plan_step([], is_idle=True).after_forward == ()


def test_a_reset_forgets_it(rig, view):
    rig.leader.reset()
    rig.leader.finish("a")
    for _ in range(MAX_STEPS + 1):
        plan = step(rig)
        assert staged((*plan.before_forward, *plan.after_forward)) == []


def test_generated_blocks_are_left_alone_when_they_are_not_to_be_kept():
    rig = Rig(cache_generated=False)
    view = View("a", list(PROMPT))
    step(rig, (view, Progress("a", PAGES, True, len(PROMPT))))
    view.tokens += [7] * (BLOCK + 1)
    step(rig, (view, Progress("a", (), False, 3 * BLOCK)))
    rig.leader.finish("a")
    assert step(rig).before_forward == ()


def test_what_is_computed_beside_a_load_by_layers_is_not_held_back():
    """If that fails, the pages hold wrong bytes until the engine has computed them again, or for ever."""
    rig = Rig(n_host=4 * MANY, onboard="layered", cost_gate=False)
    rig.compute(View("first", list(PROMPT)))
    view = View("a", [*PROMPT, *[7] * (BLOCK + 1)], n_prompt=BLOCK)  # resumed: most of it was generated
    n = rig.leader.lookup(view, 0)
    assert rig.leader.is_layered("a")
    rig.leader.admit("a", PAGES, n)
    rig.leader._trackers["a"].n_stored = 2
    plan = rig.leader.plan_step([(view, Progress("a", PAGES, True, 3 * BLOCK, 3 * BLOCK - n))], is_idle=False)
    assert plan.layered
    assert staged(plan.after_forward) == GENERATED
    assert rig.leader.filling.end("a") == []
