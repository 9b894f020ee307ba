"""The manager under any sequence of steps and failures, with workers that notice every race on a slot."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tenuto.errors import Cause
from tenuto.manager import Hit, Limits, Miss, Pending
from tenuto.testing.strategies import causes, prompts
from tenuto.tokens import HashChain
from tests.manager.manager_rig import Rig

pytestmark = pytest.mark.unit

BLOCK_TOKENS = 4
numbers = st.integers(0, 99)
failures = st.just({}) | st.just({}) | st.dictionaries(st.integers(0, 3), causes(), max_size=2)
requests = prompts(max_blocks=3, n_kinds=2, block_tokens=BLOCK_TOKENS)


class ManagerModel(RuleBasedStateMachine):
    """Requests that share prefixes look up, load and keep; transfers start, end, fail and are reported at any time."""

    make_rig = Rig

    @initialize(
        n_host=st.sampled_from([4, 3, 6, 10, 2]), n_disk=st.sampled_from([16, 16, 16, 4, None]),
        warm=st.lists(requests, max_size=6),
        max_writes=st.integers(1, 4), max_backlog=st.integers(1, 6), is_growing=st.booleans(),
        n_ranks=st.sampled_from([1, 2]),
    )  # fmt: skip
    def start_engine(self, n_host, n_disk, warm, max_writes, max_backlog, is_growing, n_ranks):
        self.rig = self.make_rig(n_host, n_disk, Limits(max_writes, max_backlog), n_ranks)
        self.manager, self.workers = self.rig.manager, self.rig.workers
        if n_disk is not None:
            self.manager.resize_disk(n_disk, is_growing=is_growing)
        self.epoch = 0
        self.known: set[bytes] = set()
        self.hits: list[Hit] = []
        for tokens in warm:
            self.rig.keep(self.chain(tokens))

    def chain(self, tokens: list[int]) -> HashChain:
        chain = HashChain(bytes([self.epoch]) * 16, BLOCK_TOKENS)
        chain.append(tokens)
        self.known.update(chain.hashes)
        return chain

    # -- requests -----------------------------------------------------------------------------------

    @rule(tokens=requests, start=st.sampled_from([0, 0, 0, 1, 2]), admits=st.booleans(), failed=failures)
    def serve(self, tokens, start, admits, failed):
        """A hit is loaded at once, or held while the engine has no memory for it; all else is computed and kept."""
        chain = self.chain(tokens)
        match self.manager.lookup(chain, start):
            case Hit() as hit:
                assert hit.start == start
                keys = [key for span in hit.spans for key in span.keys]
                assert keys == [chain.key(start + i) for i in range(hit.n_blocks)]
                if admits:
                    self.rig.onboard(hit)
                else:
                    self.hits.append(hit)
            case Pending(block):
                assert self.manager.flights._flights[self.manager.flights.arriving[block]].fills is not None
            case Miss():
                if start < len(chain.hashes):
                    self.rig.offload(chain, start, failures=failed)
                    self.rig.pump()

    @precondition(lambda self: self.hits)
    @rule(number=numbers, admits=st.booleans())
    def admit_or_abandon(self, number, admits):
        hit = self.hits.pop(number % len(self.hits))
        if admits:
            self.rig.onboard(hit)
        else:
            hit.release()

    @rule(tokens=requests)
    def compute(self, tokens):
        """Without having looked, as when the device has it all."""
        self.rig.offload(self.chain(tokens))
        self.rig.pump()

    # -- workers ------------------------------------------------------------------------------------

    @precondition(lambda self: any(map(len, self.workers)))
    @rule(steps=st.lists(numbers, min_size=1, max_size=8), failed=failures)
    def work(self, steps, failed):
        """Lanes start and end something; the first to end has failures."""
        for number in steps:
            worker = self.workers[number % len(self.workers)]
            ready, running = worker.startable(), worker.running()
            if ready and (number % 3 or not running):
                worker.start(ready[number % len(ready)])
            elif running:
                worker.end(running[number % len(running)], failed)
                failed = {}

    @precondition(lambda self: any(worker.loads() for worker in self.workers))
    @rule(number=numbers, cause=st.sampled_from([Cause.TIMEOUT, Cause.CANCELLED]))
    def give_up(self, number, cause):
        worker = self.workers[number % len(self.workers)]
        if loads := worker.loads():
            worker.give_up(loads[number % len(loads)], cause)

    @precondition(lambda self: any(worker.results for worker in self.workers))
    @rule(n=st.integers(1, 6))
    def report(self, n):
        self.rig.report(n)
        self.rig.pump()

    @rule()
    def settle(self):
        self.rig.finish()

    # -- whole tiers --------------------------------------------------------------------------------

    @rule(what=st.sampled_from(["grow", "stop growing", "pause", "use", "peer", "reset"]), tokens=requests)
    def disturb(self, what, tokens):
        if what == "reset":  # as a leader does it: unused hits are given back, new requests have other hashes
            while self.hits:
                self.hits.pop().release()
            self.manager.reset()
            self.epoch += 1
            self.known.clear()
        elif self.manager.disk is None:
            return
        elif what == "peer":
            chain = self.chain(tokens)
            self.manager.peers.add("b", [(i, chain.key(i)) for i in range(len(chain.hashes))])
        elif what in ("pause", "use"):
            self.manager.use_disk(read=what == "use" or tokens[0] == 0, write=what == "use" or tokens[0] == 1)
        else:
            self.manager.resize_disk(len(self.manager.disk) + len(tokens) // BLOCK_TOKENS, is_growing=what == "grow")

    # -- what must always hold ----------------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self):
        if hasattr(self, "rig"):
            self.rig.check()
            assert set(self.manager.host._slots) <= self.known, "a block of before the reset"
            assert self.manager.disk is None or set(self.manager.disk._slots) <= self.known
            on_their_way = [len(worker) + len(worker.results) for worker in self.workers]
            assert max(on_their_way) <= len(self.manager.flights)

    def teardown(self):
        if hasattr(self, "rig"):
            while self.hits:
                self.hits.pop().release()
            self.rig.finish()
            assert not self.manager.flights
            for pool in self.rig.pools().values():
                assert pool.statistics().leased == 0


TestManagerModel = ManagerModel.TestCase
TestManagerModel.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=50)
