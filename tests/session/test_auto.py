"""`onboard` "auto": by measured rates a hit is loaded under the forward that uses it, or before it."""

import numpy as np
import pytest

from tenuto.connectors.session import Progress, WorkerReport
from tenuto.connectors.session.costgate import MARGIN, STALL_MARGIN, TRIAL_GAP_S
from tenuto.errors import Cause
from tenuto.transfers.plan import BlockFailure, TransferResult
from tests.session.session_rig import PAGE, Rig, View
from tests.session.test_costgate import ALL, BLOCK, N_BLOCKS, TOKEN_S, Server, prompt

pytestmark = pytest.mark.unit

LEFT = 4 * TOKEN_S
"""To compute what a prompt has behind its blocks."""


class Auto(Server):
    """Prompts 0 to 5 are on disk alone; what computing takes is known."""

    def __init__(self, **options) -> None:
        super().__init__(**({"onboard": "auto"} | options))
        for number in range(6):
            self.compute_from(View(f"first{number}", prompt(number)), 0)
            self.leader.finish(f"first{number}")
        self.leader.manager.host.reset()
        self.clock.advance(1)

    def know_disk(self, seconds: float) -> None:
        """Of a whole prompt."""
        for _ in range(9):
            self.leader.gate.loaded("disk", N_BLOCKS, seconds)

    def others(self, n: int) -> None:
        """They are computed."""
        for number in range(n):
            self.leader.lookup(View(f"other{number}", [7_000_000 + number] * 20), 0)

    def ask(self, number: int, n_more: int = 0) -> tuple[int, bool]:
        """(tokens that would be loaded, whether by layers); it is not admitted."""
        self.n_asked += 1
        name = f"a{self.n_asked}"
        n = self.leader.lookup(View(name, prompt(number, ALL + 4 + n_more)), 0)
        is_layered = self.leader.is_layered(name)
        self.leader.finish(name)
        return n, is_layered


def test_while_nothing_is_known_a_lone_request_is_loaded_by_layers_and_one_beside_others_is_not():
    auto = Auto()
    assert auto.ask(0) == (ALL, True)
    auto.others(1)
    assert auto.ask(0) == (ALL, False)


@pytest.mark.parametrize("cost_gate", [True, False])
@pytest.mark.parametrize("n_others", [1, 6])
def test_beside_others_it_is_by_layers_when_the_load_hides_under_the_computing(cost_gate, n_others):
    auto = Auto(cost_gate=cost_gate)
    auto.others(n_others)
    auto.know_disk(LEFT / STALL_MARGIN / MARGIN - 1e-3)
    assert auto.ask(0) == (ALL, True)
    auto.know_disk(12 * LEFT)
    assert auto.ask(0) == (ALL, False)
    assert auto.ask(0, n_more=12 * 5) == (ALL, True)  # more is left to compute


def test_alone_it_is_by_layers_however_slow_the_disk_and_with_a_gate_only_what_pays():
    auto = Auto(cost_gate=False)
    auto.know_disk(9.0)
    assert auto.ask(0) == (ALL, True)
    gated = Auto()
    gated.know_disk(ALL * TOKEN_S)
    n, is_layered = gated.ask(0)
    assert is_layered
    assert n == ALL // 2  # the other half is computed under it


def test_a_hit_that_leaves_nothing_to_compute_is_loaded_before_the_forward():
    auto = Auto(cost_gate=False)
    auto.know_disk(1e-4)
    assert auto.ask(0, n_more=-4) == (ALL, False)


def test_what_was_not_by_layers_beside_others_is_so_again_when_that_is_clearly_better():
    auto = Auto()
    auto.others(1)
    # With one other a load is as well by layers when it takes twice as long as what hides it.
    even = 2 * LEFT / (2 * STALL_MARGIN - 1)
    auto.know_disk(even / 1.05)
    assert auto.ask(0) == (ALL, False)
    auto.know_disk(even / 2)
    assert auto.ask(1) == (ALL, True)
    auto.know_disk(even / 1.05)
    assert auto.ask(0) == (ALL, True)


def test_who_is_tried_beside_others_stalls_none_of_them():
    auto = Auto()
    auto.know_disk(100.0)
    auto.others(1)
    assert auto.ask(0)[0] == 0
    auto.clock.advance(100 * TRIAL_GAP_S)
    assert auto.ask(1, n_more=1000) == (ALL, False)


@pytest.mark.parametrize(("waited_s", "learnt_s"), [(0.0, 2.0), (0.15, 1.85), (0.5, None)])
def test_of_a_step_with_layers_counts_what_it_did_not_wait_for_them_unless_it_waited_much(waited_s, learnt_s):
    rig = Rig(onboard="layered", cost_gate=False)
    rig.compute(View("first", prompt(0)))
    view = View("a", prompt(0))
    n = rig.leader.lookup(view, 0)
    rig.leader.admit("a", range(view.n_tokens // PAGE), n)
    progress = Progress("a", range(view.n_tokens // PAGE), True, view.n_tokens, view.n_tokens - n)
    plan = rig.leader.plan_step([(view, progress)], is_idle=False, n_tokens=view.n_tokens - n)
    assert plan.layered
    assert plan.timed
    rig.clock.advance(2.0)
    results = {t.id: [TransferResult(t.id)] for t in (*plan.layered, *plan.after_forward)}
    rig.leader.receive(WorkerReport(results, timed=plan.timed, waited_s=waited_s))
    rig.leader.check()
    compute = rig.leader.gate._step_rates.cost()
    if learnt_s is None:
        assert compute is None
    else:
        assert compute.seconds(np.array([n]), np.array([view.n_tokens]))[0] == pytest.approx(learnt_s)


@pytest.mark.parametrize(("mode", "n_host", "disk", "expected"), [
    ("auto", 0, 0.1, (ALL, False)), ("auto", 4, 0.1, (ALL, False)), ("auto", 4, 1.5, (4 * BLOCK, True)),
    ("auto", N_BLOCKS, 0.1, (ALL, True)), ("layered", 4, 0.1, (ALL, False)), ("layered", N_BLOCKS, 0.1, (ALL, True)),
    ("async", N_BLOCKS, 0.1, (ALL, False)),
])  # fmt: skip
def test_an_engine_that_plans_ahead_gets_by_layers_what_is_in_host_memory_alone(mode, n_host, disk, expected):
    auto = Auto(onboard=mode, is_async_scheduled=True)
    auto.know_disk(ALL * TOKEN_S * disk)
    for _ in range(9):
        auto.leader.gate.loaded("host", N_BLOCKS, 1e-4)
    if n_host:  # its first blocks are brought into host memory
        auto.compute_from(View("warm", prompt(0, n_host * BLOCK)), 0)
        auto.leader.finish("warm")
    assert auto.ask(0) == expected


def test_who_has_pages_of_a_load_by_layers_that_may_fail_waits_for_the_next_step():
    """The engine lists these pages before they are filled; what it finds of others can be computed on at once."""
    rig = Rig(onboard="layered", cost_gate=False)
    rig.compute(View("first", prompt(0)))
    view = View("a", prompt(0))
    n = rig.leader.lookup(view, BLOCK)  # its first block is the engine's
    rig.leader.admit("a", range(view.n_tokens // PAGE), n)
    assert rig.leader.lookup(View("same", prompt(0)), BLOCK + PAGE) is None
    assert rig.leader.lookup(View("same", prompt(0), salt="s"), BLOCK + PAGE) is None  # the engine says it has them
    assert rig.leader.lookup(View("before", prompt(0)), BLOCK) is not None
    assert rig.leader.lookup(View("other", prompt(9)), BLOCK + PAGE) is not None
    progress = Progress("a", range(100, 100 + view.n_tokens // PAGE), True, view.n_tokens, view.n_tokens - n - BLOCK)
    rig.leader.plan_step([(view, progress)], is_idle=False)
    assert rig.leader.lookup(View("same", prompt(0)), BLOCK + PAGE) is not None
    rig.leader.finish("a")  # aborted before it was heard what failed
    last = 100 + view.n_tokens // PAGE
    assert rig.leader.unproven.standing_on({105, 7}) == {7, *range(105, last)}
    rig.leader.plan_step([], is_idle=True)
    assert rig.leader.unproven.standing_on({105, 7}) == {105, 7}


def test_nobody_waits_where_nothing_can_fail():
    rig = Rig(onboard="layered", cost_gate=False, is_async_scheduled=True)
    rig.compute(View("first", prompt(0)))
    view = View("a", prompt(0))
    n = rig.leader.lookup(view, 0)
    assert rig.leader.is_layered("a")
    rig.leader.admit("a", range(view.n_tokens // PAGE), n)
    assert rig.leader.lookup(View("same", prompt(0)), PAGE) is not None


def test_host_memory_is_not_slow_because_a_load_by_layers_waited_for_a_disk_that_hangs():
    rig = Rig(onboard="layered")
    rig.compute(View("first", prompt(0)))
    view = View("a", prompt(0))
    n = rig.leader.lookup(view, 0)
    assert rig.leader.is_layered("a")
    rig.leader.admit("a", range(view.n_tokens // PAGE), n)
    progress = Progress("a", range(100, 100 + view.n_tokens // PAGE), True, view.n_tokens, view.n_tokens - n)
    plan = rig.leader.plan_step([(view, progress)], is_idle=False)
    rig.clock.advance(30)
    late = tuple(BlockFailure(index, Cause.TIMEOUT) for index in range(n // BLOCK))
    (load,) = plan.layered
    rig.leader.receive(WorkerReport({load.id: [TransferResult(load.id, late)]}))
    assert rig.leader.gate._tiers == {}
