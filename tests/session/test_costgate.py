"""The cost gate at work: rates are learnt from what steps and loads take, on a clock that is made up."""

from types import SimpleNamespace

import pytest

from tenuto.connectors.session import Progress, StepPlan, Worker, WorkerReport
from tenuto.connectors.session.costgate import HALF_LIFE_S, TRIAL_GAP_S
from tenuto.errors import Cause
from tenuto.tokens import HashChain
from tenuto.transfers.plan import BlockFailure, Route, TransferResult
from tests.session.session_rig import BLOCK, LAYOUT, NAMESPACE, PAGE, Rig, View

pytestmark = pytest.mark.unit

N_BLOCKS = 10
TOKEN_S = 0.01  # computing a block takes 80 ms


class Server(Rig):
    """Serves one prompt after the other, and has a time for everything."""

    def __init__(self, *, disk_s: float = 0.02, **options) -> None:
        super().__init__(**({"n_host": 200, "disk_slots": 200} | options))
        self.disk_s = disk_s
        self.n_asked = 0

    def serve(self, tokens: list[int], where: str = "") -> int:
        """Tokens that were loaded. Before, blocks are taken out of host memory (`where` is "disk")."""
        if where == "disk":
            chain = HashChain(NAMESPACE.digest, BLOCK)
            chain.append(tokens)
            self.leader.manager.host.invalidate(chain.hashes)
        self.n_asked += 1
        view = View(f"r{self.n_asked}", tokens)
        n = self.leader.lookup(view, 0)
        self.leader.admit(view.request_id, range(len(tokens) // PAGE), n)
        if n:
            self.load()
        self.compute_from(view, n)
        self.leader.finish(view.request_id)
        return n

    def load(self) -> None:
        """A step without computing, and one more that brings the results."""
        plan = self.leader.plan_step([], is_idle=True)
        seconds = {}
        for transfer in plan.now:
            is_disk = transfer.route in (Route.DISK_TO_HOST, Route.DISK_TO_DEVICE)
            seconds[transfer.id] = len(transfer.keys) * (self.disk_s if is_disk else 0.001)
            self.clock.advance(seconds[transfer.id])
        self.clock.advance(0.001)
        self.tell(plan, seconds)
        self.leader.gate.step_ended()

    def compute_from(self, view: View, start: int) -> None:
        n_new = view.n_tokens - start
        pages = range(1000, 1000 + view.n_tokens // PAGE)
        plan = self.leader.plan_step(
            [(view, Progress(view.request_id, pages, True, view.n_tokens, n_new))], is_idle=False, n_tokens=n_new
        )
        self.clock.advance(n_new * TOKEN_S)
        self.tell(plan, {})
        self.leader.gate.step_ended()

    def tell(self, plan, seconds: dict[int, float]) -> None:
        transfers = (*plan.before_forward, *plan.now, *plan.after_forward)
        size = LAYOUT.extent_bytes
        self.leader.receive(
            WorkerReport(
                {t.id: [TransferResult(t.id, (), len(t.keys) * size, seconds.get(t.id, 0.0))] for t in transfers},
                timed=plan.timed,
            )
        )
        self.leader.check()

    def count(self, name: str) -> int:
        return self.leader.statistics().get(name, 0)


def prompt(number: int, n_tokens: int = N_BLOCKS * BLOCK + 4) -> list[int]:
    return [1000 * number + at for at in range(n_tokens)]


ALL = N_BLOCKS * BLOCK


def test_a_hit_is_loaded_while_nothing_is_known_of_rates():
    server = Server(disk_s=10)
    server.compute(View("first", prompt(0)))  # no step was timed
    assert server.serve(prompt(0), "disk") == ALL


def test_a_disk_slower_than_computing_is_left_alone_until_it_is_fast_again():
    server = Server(disk_s=3 * BLOCK * TOKEN_S)
    assert server.serve(prompt(0)) == 0
    assert server.serve(prompt(0), "disk") == ALL  # unknown: it is loaded, and that was slow
    assert [server.serve(prompt(0), "disk") for _ in range(3)] == [0, 0, 0]
    assert server.serve(prompt(0)) == ALL  # host memory is fast
    assert server.count("tokens.gated.disk") == 3 * ALL
    assert server.count("tokens.found.disk") == ALL

    server.disk_s = 0.001  # nobody knows
    assert server.serve(prompt(0), "disk") == 0
    server.clock.advance(2 * HALF_LIFE_S)
    assert server.serve(prompt(0), "disk") == ALL  # a trial
    assert [server.serve(prompt(0), "disk") for _ in range(3)] == [ALL] * 3


def test_a_disk_that_stays_slow_is_tried_seldom():
    server = Server(disk_s=3 * BLOCK * TOKEN_S)
    server.serve(prompt(0))
    began, n_loads, n_asked = server.clock(), 0, 0
    while server.clock() - began < 3600:
        n_loads += server.serve(prompt(0), "disk") > 0
        n_asked += 1
        server.clock.advance(1.0)
    assert n_asked > 1500
    assert 20 < n_loads < 3600 / HALF_LIFE_S


def test_beside_others_a_slow_disk_is_used_as_long_as_its_queue_is_short():
    server = Server(disk_s=3 * BLOCK * TOKEN_S)
    for number in range(9):
        server.serve(prompt(number))
    server.serve(prompt(0), "disk")
    assert server.serve(prompt(0), "disk") == 0  # alone, computing is sooner
    server.leader.manager.host.reset()
    views = [View(f"v{number}", prompt(number)) for number in range(9)]
    loaded = []
    for view in views:
        loaded.append(server.leader.lookup(view, 0))
        server.leader.admit(view.request_id, range(view.n_tokens // PAGE), loaded[-1])
    # A load takes three times as long as computing: beside two that wait it does not pay yet, beside three it does,
    # and once it is on its way the next has to wait for it too.
    assert loaded == [0, 0, 0, ALL, 0, 0, ALL, 0, 0]
    for view in views:
        server.leader.finish(view.request_id)
    server.leader.check()


def test_trials_are_one_at_a_time():
    server = Server(disk_s=3 * BLOCK * TOKEN_S)
    for number in range(3):
        server.serve(prompt(number))
    server.serve(prompt(0), "disk")
    server.serve(prompt(0), "disk")
    server.clock.advance(3 * HALF_LIFE_S)
    server.leader.manager.host.reset()
    views = [View(f"v{number}", prompt(number)) for number in range(3)]
    assert [server.leader.lookup(view, 0) for view in views] == [ALL, 0, 0]
    server.clock.advance(TRIAL_GAP_S)
    assert server.leader.lookup(views[1], 0) == 0  # what was answered stands
    assert server.leader.lookup(View("late", prompt(2)), 0) == ALL


def test_a_refused_tier_must_be_clearly_better_to_be_used_again():
    server = Server(disk_s=1.05 * BLOCK * TOKEN_S)
    server.serve(prompt(0))
    assert server.serve(prompt(0), "disk") == ALL
    assert server.serve(prompt(0), "disk") == 0
    server.leader.gate.loaded("disk", N_BLOCKS, 0.97 * ALL * TOKEN_S)
    server.leader.gate.loaded("disk", N_BLOCKS, 0.97 * ALL * TOKEN_S)
    assert server.serve(prompt(0), "disk") == 0
    for _ in range(8):
        server.leader.gate.loaded("disk", N_BLOCKS, 0.8 * ALL * TOKEN_S)
    assert server.serve(prompt(0), "disk") == ALL


def test_only_the_part_of_a_hit_that_pays_is_loaded_and_the_rest_given_back():
    server = Server(disk_s=3 * BLOCK * TOKEN_S)
    server.serve(prompt(0))
    server.serve(prompt(0))
    server.serve(prompt(1), "disk")
    server.serve(prompt(1), "disk")  # both tiers are known
    chain = HashChain(NAMESPACE.digest, BLOCK)
    chain.append(prompt(0))
    server.leader.manager.host.invalidate(chain.hashes[6:])
    view = View("a", prompt(0))
    assert server.leader.lookup(view, 0) == 6 * BLOCK
    assert server.count("disk.leased") == 0
    assert server.leader.lookup(view, 0) == 6 * BLOCK
    server.leader.admit("a", range(100), 6 * BLOCK)
    assert server.count("tokens.gated.disk") == 4 * BLOCK
    server.load()
    server.leader.finish("a")
    assert server.count("host.leased") == 0


def test_what_is_refused_stays_so_while_the_request_waits_and_is_counted_once():
    server = Server(disk_s=3 * BLOCK * TOKEN_S)
    server.serve(prompt(0))
    server.serve(prompt(0), "disk")
    server.serve(prompt(0), "disk")
    before = server.count("tokens.gated.disk")
    server.leader.manager.host.reset()
    view = View("a", prompt(0))
    for _ in range(5):
        assert server.leader.lookup(view, 0) == 0
        server.clock.advance(HALF_LIFE_S)  # a trial would be due
    assert server.count("disk.leased") == 0
    assert server.count("tokens.gated.disk") == before
    server.leader.admit("a", range(100), 0)
    server.leader.admit("a", range(100), 0)
    assert server.count("tokens.gated.disk") == before + ALL
    assert server.leader.lookup(view, 0) > 0  # preempted, it asks anew
    server.leader.finish("a")


def test_what_the_engine_has_of_a_refused_block_is_not_counted():
    server = Server(disk_s=3 * BLOCK * TOKEN_S)
    server.serve(prompt(0))
    server.serve(prompt(0), "disk")
    server.leader.manager.host.reset()
    assert server.leader.lookup(View("a", prompt(0)), BLOCK + PAGE) == 0
    server.leader.admit("a", range(100), 0)
    assert server.count("tokens.gated.disk") == ALL - BLOCK - PAGE


def test_switched_off_it_loads_whatever_is_found():
    server = Server(disk_s=3 * BLOCK * TOKEN_S, cost_gate=False)
    server.serve(prompt(0))
    assert [server.serve(prompt(0), "disk") for _ in range(4)] == [ALL] * 4
    assert server.count("rate.load.disk") > 0  # it tells the rates all the same


def test_one_stall_of_a_tier_that_nobody_knew_keeps_it_out_for_seconds_not_minutes():
    server = Server(disk_s=30 / N_BLOCKS)
    server.serve(prompt(0))
    assert server.serve(prompt(0), "disk") == ALL
    assert server.serve(prompt(0), "disk") == 0
    server.disk_s = 0.001  # nobody knows
    server.clock.advance(TRIAL_GAP_S)
    assert [server.serve(prompt(0), "disk") for _ in range(5)] == [ALL] * 5


def test_a_tier_that_was_slow_twice_is_slow():
    server = Server(disk_s=30 / N_BLOCKS)
    server.serve(prompt(0))
    assert server.serve(prompt(0), "disk") == ALL
    server.clock.advance(TRIAL_GAP_S)
    assert server.serve(prompt(0), "disk") == ALL
    for _ in range(10):
        server.clock.advance(TRIAL_GAP_S)
        assert server.serve(prompt(0), "disk") == 0


@pytest.mark.parametrize("n_before", [1, 2, 5])
def test_one_stall_of_a_tier_that_is_known_changes_nothing(n_before):
    server = Server(disk_s=0.02)
    server.serve(prompt(0))
    for _ in range(n_before):
        assert server.serve(prompt(0), "disk") == ALL
    server.disk_s = 30 / N_BLOCKS
    assert server.serve(prompt(0), "disk") == ALL
    server.disk_s = 0.02
    assert [server.serve(prompt(0), "disk") for _ in range(5)] == [ALL] * 5


def test_a_stall_that_a_trial_meets_does_not_make_the_next_one_late():
    server = Server(disk_s=3 * BLOCK * TOKEN_S)
    server.serve(prompt(0))
    server.serve(prompt(0), "disk")
    server.clock.advance(TRIAL_GAP_S)
    server.serve(prompt(0), "disk")
    server.clock.advance(2 * HALF_LIFE_S)
    server.disk_s = 300.0
    assert server.serve(prompt(0), "disk") == ALL
    server.disk_s = 0.001
    assert server.serve(prompt(0), "disk") == 0
    server.clock.advance(2 * HALF_LIFE_S)
    assert server.serve(prompt(0), "disk") == ALL


def test_one_load_that_waited_for_long_keeps_no_tier_out():
    server = Server()
    server.serve(prompt(0))
    server.leader.gate.waited(30.0)
    assert [server.serve(prompt(0)) for _ in range(3)] == [ALL] * 3
    assert [server.serve(prompt(0), "disk") for _ in range(3)] == [ALL] * 3


def test_a_load_that_timed_out_tells_how_slow_its_tier_is():
    server = Server()
    server.serve(prompt(0))
    for number in range(2):  # the second time it is no stall
        server.leader.manager.host.reset()
        view = View(f"a{number}", prompt(0))
        assert server.leader.lookup(view, 0) == ALL
        server.leader.admit(view.request_id, range(100), ALL)
        bring, load = server.leader.plan_step([], is_idle=True).now
        server.clock.advance(30)
        late = tuple(BlockFailure(index, Cause.TIMEOUT) for index in range(N_BLOCKS))
        server.leader.receive(WorkerReport({load.id: [TransferResult(load.id, late)]}))
        server.leader.receive(WorkerReport({bring.id: [TransferResult(bring.id, (), 1, 31.0)]}))
        server.clock.advance(10)  # the disk is asked again
    server.leader.manager.host.reset()
    assert server.leader.lookup(View("b", prompt(0)), 0) == 0
    server.leader.check()


def test_rates_are_told_in_tokens_and_bytes_per_second():
    server = Server(disk_s=0.02)
    server.serve(prompt(0))
    server.serve(prompt(0), "disk")
    assert server.count("rate.prefill") == pytest.approx(1 / TOKEN_S, abs=1)
    assert server.count("rate.load.disk") == pytest.approx(LAYOUT.extent_bytes / 0.021, rel=0.01)


def plan(rig, n_tokens, n_new=None):
    """The step's number."""
    view = View("a", list(range(n_tokens)))
    progress = Progress("a", (), False, n_tokens, n_tokens if n_new is None else n_new)
    return rig.leader.plan_step([(view, progress)], is_idle=False, n_tokens=n_tokens).timed


def end(rig, number):
    """As an engine does: the workers' report, then that there is a result."""
    if number:
        rig.leader.receive(WorkerReport(timed=number))
    rig.leader.gate.step_ended()


def rate(rig):
    rig.leader.gate._computes.clear()
    rig.leader.gate._refit(0)
    return rig.leader.statistics().get("rate.prefill", 0)


def test_a_step_takes_from_its_plan_to_its_result():
    rig = Rig()
    rig.clock.advance(100)
    number = plan(rig, 400)
    rig.clock.advance(4)
    end(rig, number)
    assert rate(rig) == 100


def test_with_steps_in_flight_a_step_takes_from_the_result_before_it():
    rig = Rig()
    before = plan(rig, 400)
    for _ in range(5):
        number = plan(rig, 400)  # made while the one before runs
        rig.clock.advance(4)
        end(rig, before)
        before = number
    assert rate(rig) == 100


def test_a_step_takes_from_the_result_before_it_also_where_that_was_of_no_prompt():
    rig = Rig()
    rig.leader.plan_step([], is_idle=False, n_tokens=64)
    number = plan(rig, 400)
    rig.clock.advance(50)
    end(rig, 0)
    rig.clock.advance(4)
    end(rig, number)
    assert rate(rig) == 100


def test_results_that_are_lost_or_told_of_twice_shift_no_time_to_another_step():
    rig = Rig()
    lost = plan(rig, 400)
    rig.clock.advance(1000)
    number = plan(rig, 400)
    rig.clock.advance(4)
    end(rig, number)
    end(rig, number)
    end(rig, lost)
    end(rig, 99)
    for _ in range(3):  # nobody planned these, as when the engine tells of results that we have no part in
        rig.leader.gate.step_ended()
        rig.clock.advance(7)
    number = plan(rig, 400)
    rig.clock.advance(4)
    end(rig, number)
    assert rate(rig) == 100
    assert not rig.leader.gate._steps


def test_steps_that_mostly_generate_are_not_counted():
    rig = Rig()
    view = View("a", list(range(400)), n_prompt=100)
    step = rig.leader.plan_step([(view, Progress("a", (), False, 400, 1))], is_idle=False, n_tokens=256)
    assert step.timed == 0
    rig.clock.advance(1)
    end(rig, 0)
    assert plan(rig, 400, n_new=100) == 0  # 300 tokens are others'
    assert rate(rig) == 0


def test_an_engine_that_tells_of_no_results_teaches_nothing_and_costs_nothing():
    rig = Rig()
    for _ in range(1000):
        plan(rig, 400)
    assert len(rig.leader.gate._steps) <= 8
    assert rate(rig) == 0


def test_a_worker_names_the_step_that_is_to_be_timed_once():
    worker = Worker(Rig().leader.setup)
    worker._engine = SimpleNamespace(settle=lambda: None)
    worker.begin_step(StepPlan(timed=7))
    assert worker.report() == WorkerReport(timed=7)
    assert worker.report() is None
    worker.begin_step(StepPlan())
    assert worker.report() is None
    waits_s = iter([0.2, 0.3, 0.0])
    worker._layered = SimpleNamespace(take_waited_s=lambda: next(waits_s))
    worker.begin_step(StepPlan(timed=8))
    assert worker.report() == WorkerReport(timed=8, waited_s=0.2)
    worker.begin_step(StepPlan())  # what it waits is none of the next step's
    assert worker.report() is None
    worker.begin_step(StepPlan(timed=9))
    assert worker.report() == WorkerReport(timed=9)


def test_ranks_that_name_a_step_name_the_same():
    one, two = WorkerReport(timed=7, waited_s=0.1), WorkerReport(timed=7, waited_s=0.3)
    one.merge(two)
    two.merge(WorkerReport())
    assert one.timed == two.timed == 7
    assert one.waited_s == two.waited_s == 0.3
