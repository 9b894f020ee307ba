"""The cost gate when loads wait for each other: for how long, who counts, and what is learnt of it."""

import pytest

from tenuto.connectors.session import WorkerReport
from tenuto.connectors.session.costgate import _Case
from tenuto.errors import Cause
from tenuto.manager import Offer
from tenuto.transfers.plan import BlockFailure, Route, TransferResult
from tests.session.session_rig import LAYOUT, PAGE, View
from tests.session.test_costgate import ALL, BLOCK, N_BLOCKS, TOKEN_S, Server, prompt

pytestmark = pytest.mark.unit

COMPUTE_S = ALL * TOKEN_S  # of a prompt: 0.8 s
DEADLINE_S = 30.0


class Busy(Server):
    """Prompts 0 to 8 are on disk alone; computing and disk are known."""

    def __init__(self, disk_s: float, **options) -> None:
        super().__init__(disk_s=disk_s, **options)
        for number in range(9):
            self.serve(prompt(number))
        for number in (0, 1, 0):
            self.leader.gate.loaded("disk", N_BLOCKS, N_BLOCKS * disk_s)
            self.serve(prompt(number))
        self.leader.manager.host.reset()
        self.clock.advance(1)

    def others(self, n: int) -> None:
        """They are computed."""
        for number in range(n):
            self.leader.lookup(View(f"other{number}", [7_000_000 + number] * 20), 0)

    def ask(self, number: int, name: str = "") -> int:
        """Tokens that begin to be loaded."""
        view = View(name or f"v{number}", prompt(number))
        n = self.leader.lookup(view, 0)
        self.leader.admit(view.request_id, range(view.n_tokens // PAGE), n)
        return n

    def start(self) -> list[tuple[int, int]]:
        """(bring, load) of each load that was begun."""
        now = self.leader.plan_step([], is_idle=True).now
        loads = [transfer for transfer in now if transfer.route is Route.HOST_TO_DEVICE]
        return [(load.after[0] if load.after else load.id, load.id) for load in loads]

    def end(self, number: int, seconds: float, cause: Cause | None = None) -> None:
        """Of a transfer."""
        failures = () if cause is None else tuple(BlockFailure(index, cause) for index in range(N_BLOCKS))
        n_bytes = 0 if failures else N_BLOCKS * LAYOUT.extent_bytes
        self.leader.receive(WorkerReport({number: [TransferResult(number, failures, n_bytes, seconds)]}))

    def disk_rate(self) -> float:
        """Seconds for a prompt from disk."""
        return N_BLOCKS * LAYOUT.extent_bytes / self.count("rate.load.disk")


def test_however_many_wait_no_load_is_begun_that_would_miss_its_deadline():
    server = Busy(3.0 / N_BLOCKS)
    server.others(2000)
    n_blocks = sum(server.ask(number) for number in range(9)) // BLOCK
    assert DEADLINE_S / 2 - 0.4 < n_blocks * 0.3 <= DEADLINE_S / 2


def test_that_holds_too_while_nothing_is_known_of_computing():
    server = Server(disk_s=3.0 / N_BLOCKS)
    for number in range(9):
        server.compute(View(f"first{number}", prompt(number)))
    server.leader.manager.host.reset()
    server.leader.gate.loaded("disk", N_BLOCKS, 3.0)
    views = [View(f"v{number}", prompt(number)) for number in range(9)]
    loaded = []
    for view in views:
        loaded.append(server.leader.lookup(view, 0))
        server.leader.admit(view.request_id, range(view.n_tokens // PAGE), loaded[-1])
    assert DEADLINE_S / 2 - 0.4 < sum(loaded) // BLOCK * 0.3 <= DEADLINE_S / 2


def test_what_was_given_up_is_waited_for_as_long_as_it_is_read():
    """Its request computes, but its reading goes on: a load that did not count it would be given up in its turn."""
    server = Busy(14.0 / N_BLOCKS)
    server.others(100)
    assert [server.ask(0), server.ask(1)] == [ALL, 0]
    ((bring, load),) = server.start()
    server.clock.advance(DEADLINE_S)
    server.end(load, 0.0, Cause.TIMEOUT)
    server.clock.advance(9)  # the disk is not asked before
    server.leader.gate.loaded("disk", N_BLOCKS, 14.0)
    server.clock.advance(1)
    assert server.ask(2) == 0
    server.end(bring, 41.0)
    server.leader.gate.loaded("disk", N_BLOCKS, 14.0)
    assert server.ask(3) == ALL
    ((bring, load),) = server.start()
    server.end(bring, 14.0)
    server.end(load, 0.0)
    server.leader.check()
    assert len(server.leader._loading) == 0


def test_a_load_that_was_given_up_before_its_turn_teaches_what_it_takes_by_itself():
    server = Busy(2.0 / N_BLOCKS)
    server.others(100)
    assert [server.ask(number) > 0 for number in range(7)] == [True] * 7
    loads = server.start()
    server.clock.advance(1)
    for bring, load in loads[:1]:  # slower than it was
        server.clock.advance(4)
        server.end(bring, 5.0)
        server.end(load, 0.0)
    server.clock.advance(25)
    for _, load in loads[1:]:
        server.end(load, 0.0, Cause.TIMEOUT)
    before = server.disk_rate()
    for bring, _ in loads[2:]:
        server.clock.advance(2)
        server.end(bring, 2.0)
    assert before < 6
    assert server.disk_rate() == pytest.approx(2.0, rel=0.1)


def test_after_a_crowd_a_lone_hit_is_loaded_as_before_it():
    """What loads have waited for each other is not taken for what each waits for by itself."""
    server = Busy(2.0 / N_BLOCKS)
    server.others(100)
    for _ in range(3):
        assert [server.ask(number) > 0 for number in range(7)] == [True] * 7
        for bring, load in server.start():
            server.clock.advance(2)
            server.end(bring, 2.0)
            server.end(load, 0.001)
        for number in range(7):
            server.leader.finish(f"v{number}")
        server.leader.manager.host.reset()
    for number in range(100):
        server.leader.finish(f"other{number}")
    server.serve(prompt(0))
    assert server.serve(prompt(0)) == ALL
    assert server.leader.gate._wait_s() < 0.1


def test_a_peers_blocks_wait_for_those_of_the_disk():
    server = Busy(3.0 / N_BLOCKS)
    gate = server.leader.gate
    for _ in range(3):
        gate.loaded("peer", N_BLOCKS, COMPUTE_S / 2)
    offer = Offer((("peer", N_BLOCKS),), 0, 0, ALL + 4, BLOCK, gate._block_bytes)
    alone = _Case(offer, n_others=0, n_layerable=0, wait_s=0.0)
    assert gate._best(alone, gate._costs({})).n_blocks == N_BLOCKS
    assert gate._best(alone, gate._costs({"host": (9, 9)})).n_blocks == N_BLOCKS
    assert gate._best(alone, gate._costs({"disk": (1, N_BLOCKS)})).n_blocks == 0


def test_what_each_load_takes_whatever_it_brings_is_waited_for_too():
    server = Busy(0.01)
    gate = server.leader.gate
    for n_blocks in (1, 2, 4, 8) * 4:
        gate.loaded("disk", n_blocks, 0.2 + n_blocks * 1e-4)
    cost = gate._costs({"disk": (6, 6)})["disk"]
    assert cost.fixed_s == pytest.approx(7 * 0.2, rel=0.1)


def test_who_is_loading_or_waits_for_a_load_does_not_wait_for_computing():
    server = Busy(2.0 / N_BLOCKS)
    server.others(2)
    loading = server.leader._loading
    assert server.ask(0) == ALL  # 2 s beside two that wait for 0.8 s each
    assert server.leader.lookup(View("same", prompt(0)), 0) is None
    assert loading.n_computing(server.leader._trackers) == 2 - 1
    server.leader.finish("other0")
    assert server.leader.lookup(View("b", prompt(5)), 0) == 0


def test_who_is_refused_for_the_queue_alone_is_not_held_to_be_slower():
    server = Busy(0.95 * COMPUTE_S / N_BLOCKS)
    assert server.ask(0) == ALL
    assert server.ask(1) == 0  # it would come behind the first
    ((bring, load),) = server.start()
    server.end(bring, 0.95 * COMPUTE_S)
    server.end(load, 0.0)
    for name in ("v0", "v1"):
        server.leader.finish(name)
    assert server.ask(2) == ALL  # though by less than the margin, it is sooner than computing
