"""A session whose cost gate has learnt anything at all: what it gives back is given back, and bytes stay right."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.session.session_rig import BLOCK, PAGE
from tests.session.test_session_model import SessionModel, numbers, requests

pytestmark = pytest.mark.unit

seconds = st.sampled_from([1e-6, 1e-3, 1.0, 100.0])


class GatedModel(SessionModel):
    """Rates change at any time; requests end, are preempted, or lose the cache between lookup and admission."""

    @property
    def gate(self):
        return self.engine.leader.gate

    @initialize(
        n_ranks=st.sampled_from([2, 1]), n_host=st.sampled_from([3, 2, 5, 12]), n_disk=st.sampled_from([24, 24, 4]),
        keeps_trailing=st.booleans(), warm=st.lists(requests, min_size=1, max_size=6), disk_s=seconds, step_s=seconds,
    )  # fmt: skip
    def start_engine(self, n_ranks, n_host, n_disk, keeps_trailing, warm, disk_s, step_s):
        """All rates are known; host memory is fast."""
        super().start_engine(n_ranks, n_host, n_disk, keeps_trailing, warm)
        self.most = None
        choose = self.gate.choose

        def at_most(situation, queued):
            chosen = choose(situation, queued)
            return chosen if self.most is None else replace(chosen, n_blocks=min(chosen.n_blocks, self.most))

        self.gate.choose = at_most
        for n_blocks in (1, 2, 3):
            self.gate.loaded("disk", n_blocks, n_blocks * disk_s)
            self.gate.loaded("host", n_blocks, n_blocks * 1e-6)
            self.step_rate(BLOCK * n_blocks, BLOCK * n_blocks * step_s, True)

    def give_back_is_balanced(self):
        self.engine.leader.check()
        trackers = self.engine.leader._trackers
        held = {name for name, tracker in trackers.items() if tracker.hit is not None}
        assert held <= self.engine.seqs.keys(), "a request that has ended holds a hit"

    @rule(tier=st.sampled_from(["disk", "disk", "host", "peer"]), n_blocks=st.integers(1, 5), took=seconds)
    def load_rate(self, tier, n_blocks, took):
        self.gate.loaded(tier, n_blocks, took)

    @rule(n_tokens=st.integers(1, 64), took=seconds, is_told=st.booleans())
    def step_rate(self, n_tokens, took, is_told):
        number = self.gate.step_planned(n_tokens, n_tokens, n_tokens)
        self.engine.clock.advance(took)
        if is_told:
            self.gate.step_told(number)
        self.gate.step_ended()

    @rule(most=st.sampled_from([None, 0, 1, 1, 2]))
    def bound(self, most):
        """As if what lies behind so many blocks were slow."""
        self.most = most

    @rule(took=seconds)
    def wait(self, took):
        self.gate.waited(took)

    @precondition(lambda self: any(not seq.is_running and not seq.awaited for seq in self.engine.seqs.values()))
    @rule(number=numbers, n_local=st.sampled_from([0, 0, 1]), times=st.integers(1, 3),
          then=st.sampled_from(["end", "reset", "preempt others", "time", "nothing"]))  # fmt: skip
    def look(self, number, n_local, times, then):
        """Lookups without admission, and what may come instead."""
        engine = self.engine
        waiting = [name for name, seq in engine.seqs.items() if not seq.is_running and not seq.awaited]
        name = waiting[number % len(waiting)]
        seq = engine.seqs[name]
        engine._learn(seq)
        n_computed = min(n_local * BLOCK, (seq.view.n_tokens - 1) // PAGE * PAGE)
        answers = [engine.leader.lookup(seq.view, n_computed) for _ in range(times)]
        assert len(set(answers)) == 1, "an answer stays while the request is not admitted"
        assert n_computed + (answers[0] or 0) <= seq.view.n_tokens
        match then:
            case "end":
                engine.end(name)
            case "reset":
                engine.reset()
            case "preempt others":
                for other in list(engine.seqs):
                    engine.preempt(other)
            case "time":
                engine.clock.advance(11)
            case _:
                pass
        self.give_back_is_balanced()

    def teardown(self):
        super().teardown()
        if hasattr(self, "engine"):
            gated = {tier: self.engine.leader.statistics().get(f"tokens.gated.{tier}", 0) for tier in ("host", "disk")}
            assert all(n >= 0 for n in gated.values())


TestGatedModel = GatedModel.TestCase
TestGatedModel.settings = settings(stateful_step_count=40)
