"""A leader and its ranks under any schedule and failures: no request ever computes on wrong bytes."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tenuto.errors import Cause
from tenuto.testing.strategies import causes, prompts
from tests.session.engine_model import EngineModel
from tests.session.session_rig import BLOCK

pytestmark = pytest.mark.unit

numbers = st.integers(0, 99)
failures = st.just({}) | st.just({}) | st.dictionaries(st.integers(0, 3), causes(), max_size=2)
requests = prompts(max_blocks=3, n_kinds=2, block_tokens=BLOCK)


class SessionModel(RuleBasedStateMachine):
    """Requests come and go, are preempted and reset; ranks work at their own pace."""

    @initialize(
        n_ranks=st.sampled_from([2, 1]), n_host=st.sampled_from([3, 2, 5, 12]), n_disk=st.sampled_from([24, 24, 4]),
        keeps_trailing=st.booleans(), warm=st.lists(requests, max_size=6),
    )  # fmt: skip
    def start_engine(self, n_ranks, n_host, n_disk, keeps_trailing, warm):
        self.engine = EngineModel(n_ranks, n_host, n_disk, keeps_trailing=keeps_trailing)
        for tokens in warm:
            self.engine.add(tokens)
            self.step(1, 0, 5 * BLOCK, True, {})
            self.settle()
            self.end(0)

    @rule(tokens=requests, tail=st.integers(0, BLOCK), has_room=st.booleans())
    def add(self, tokens, tail, has_room):
        self.engine.add([*tokens, *range(100, 100 + tail)])
        self.step(99, 0, 2 * BLOCK, has_room, {})

    @rule(
        n_admitted=numbers, n_local_pages=st.sampled_from([0, 0, 0, 1, 3]), n_tokens=st.integers(1, 3 * BLOCK),
        has_room=st.booleans(), failed=failures,
    )  # fmt: skip
    def step(self, n_admitted, n_local_pages, n_tokens, has_room, failed):
        chosen = list(self.engine.seqs)[-1 - n_admitted :]
        self.engine.step(chosen, n_local_pages, n_tokens, has_room=has_room, failures=failed)

    @rule(n_tokens=st.integers(BLOCK, 3 * BLOCK))
    def generate(self, n_tokens):
        for _ in range(n_tokens):
            self.engine.step([], 0, 1)

    @precondition(lambda self: self.engine.seqs)
    @rule(number=numbers)
    def end(self, number):
        self.engine.end(list(self.engine.seqs)[number % len(self.engine.seqs)])

    @precondition(lambda self: self.engine.seqs)
    @rule(number=numbers)
    def preempt(self, number):
        self.engine.preempt(list(self.engine.seqs)[number % len(self.engine.seqs)])

    @rule(steps=st.lists(numbers, min_size=1, max_size=8), failed=failures)
    def work(self, steps, failed):
        """Lanes of the ranks start and end something; the first to end has failures."""
        for number in steps:
            worker = self.engine.ranks[number % len(self.engine.ranks)]
            ready, running = worker.startable(), worker.running()
            if ready and (number % 3 or not running):
                worker.start(ready[number % len(ready)])
            elif running:
                worker.end(running[number % len(running)], failed)
                failed = {}

    @rule(number=numbers)
    def give_up(self, number):
        worker = self.engine.ranks[number % len(self.engine.ranks)]
        if loads := worker.loads():
            worker.give_up(loads[number % len(loads)], Cause.TIMEOUT)

    @rule()
    def settle(self):
        """All lanes end, and two steps hear of it."""
        for _ in range(2):
            for worker in self.engine.ranks:
                worker.results = worker.run()
            self.engine.step([], 0, 1)

    @rule()
    def pass_time(self):
        self.engine.clock.advance(11)

    @precondition(lambda self: self.engine.n_requests % 4 == 3)
    @rule()
    def reset(self):
        self.engine.reset()

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        for _ in range(50):  # loads end first, then requests, then what is on its way to disk
            self.settle()
            for name in list(engine.seqs):
                engine.end(name)
        assert engine.seqs == {}
        assert not engine.leader.has_pending, "steps without end"
        engine.leader.check()
        figures = engine.leader.statistics()
        assert figures["host.leased"] == figures["disk.leased"] == figures["requests"] == 0
        tokens = {
            what: [figures.get(f"tokens.{what}.{tier}", 0) for tier in ("host", "disk", "peer")]
            for what in ("found", "loaded", "failed")
        }
        assert tokens["found"] == [sum(ends) for ends in zip(tokens["loaded"], tokens["failed"], strict=True)]
        assert figures["tokens.asked"] >= figures["tokens.engine"] + sum(tokens["found"])


TestSessionModel = SessionModel.TestCase
TestSessionModel.settings = settings(stateful_step_count=40)
