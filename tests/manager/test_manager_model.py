"""The manager under any sequence of steps and failures, with workers that notice every race on a slot."""

import pytest
from hypothesis import note, settings
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
failures = st.dictionaries(st.integers(0, 3), causes(), max_size=2)
requests = prompts(max_blocks=4, n_kinds=2, block_tokens=BLOCK_TOKENS)


class ManagerModel(RuleBasedStateMachine):
    """Requests that share prefixes look up, load and keep; transfers start, end, fail and are reported at any time."""

    @initialize(
        n_host=st.integers(1, 6), n_disk=st.sampled_from([None, 1, 3, 8, 16]),
        max_writes=st.integers(1, 4), max_backlog=st.integers(1, 6), is_growing=st.booleans(),
    )  # fmt: skip
    def start_engine(self, n_host, n_disk, max_writes, max_backlog, is_growing):
        self.rig = Rig(n_host, n_disk, Limits(max_writes, max_backlog))
        self.manager, self.worker = self.rig.manager, self.rig.worker
        if n_disk is not None:
            self.manager.resize_disk(n_disk, is_growing=is_growing)
        self.epoch = 0
        self.hits: list[Hit] = []

    def chain(self, tokens: list[int]) -> HashChain:
        chain = HashChain(bytes([self.epoch]) * 16, BLOCK_TOKENS)
        chain.append(tokens)
        return chain

    # -- requests -----------------------------------------------------------------------------------

    @rule(tokens=requests, start=st.sampled_from([0, 0, 1, 2]))
    def look_up(self, tokens, start):
        chain = self.chain(tokens)
        match self.manager.lookup(chain, start):
            case Hit() as hit:
                assert hit.start == start
                keys = [key for span in hit.spans for key in span.keys]
                assert keys == [chain.key(start + i) for i in range(hit.n_blocks)]
                self.hits.append(hit)
            case Pending(transfer_id):
                assert self.manager._flights._flights[transfer_id].fills is not None
            case Miss():
                pass

    @precondition(lambda self: self.hits)
    @rule(number=numbers)
    def admit(self, number):
        self.rig.onboard(self.hits.pop(number % len(self.hits)))

    @precondition(lambda self: self.hits)
    @rule(number=numbers)
    def abandon(self, number):
        self.hits.pop(number % len(self.hits)).release()

    @rule(tokens=requests, start=st.sampled_from([0, 0, 1, 2]), failed=failures)
    def keep(self, tokens, start, failed):
        chain = self.chain(tokens)
        if start < len(chain.hashes):
            self.rig.offload(chain, start, failures=failed)
        self.rig.pump()

    # -- workers ------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.worker))
    @rule(steps=st.lists(numbers, min_size=1, max_size=5), failed=failures)
    def work(self, steps, failed):
        """Lanes start and end something; the first to end has failures."""
        for number in steps:
            ready, running = self.worker.startable(), self.worker.running()
            if ready and (number % 2 or not running):
                self.worker.start(ready[number % len(ready)])
            elif running:
                self.worker.end(running[number % len(running)], failed)
                failed = {}

    @precondition(lambda self: self.worker.loads())
    @rule(number=numbers, cause=st.sampled_from([Cause.TIMEOUT, Cause.CANCELLED]))
    def give_up(self, number, cause):
        loads = self.worker.loads()
        self.worker.give_up(loads[number % len(loads)], cause)

    @precondition(lambda self: self.worker.results)
    @rule(n=st.integers(1, 6))
    def report(self, n):
        for result in sorted(self.worker.take(n), key=lambda result: result.transfer_id):
            note(f"complete {result}")
            self.manager.complete(result)
        self.rig.pump()

    @rule()
    def settle(self):
        self.rig.finish()

    # -- whole tiers --------------------------------------------------------------------------------

    @rule()
    def reset(self):
        """As a leader does it: unused hits are given back, and new requests have other hashes."""
        while self.hits:
            self.hits.pop().release()
        self.manager.reset()
        self.epoch += 1

    @precondition(lambda self: self.manager.disk is not None)
    @rule(more=st.integers(0, 4), is_growing=st.booleans(), read=st.booleans(), write=st.booleans())
    def disturb_the_disk(self, more, is_growing, read, write):
        """It grows, and is paused or used again."""
        self.manager.resize_disk(len(self.manager.disk) + more, is_growing=is_growing)
        self.manager.use_disk(read=read, write=write)

    @precondition(lambda self: self.manager.disk is not None)
    @rule(tokens=requests, volume=st.sampled_from(["b", "c"]))
    def hear_of_a_peer(self, tokens, volume):
        chain = self.chain(tokens)
        self.manager.peers.add(volume, [(i, chain.key(i)) for i in range(len(chain.hashes))])

    # -- what must always hold ----------------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self):
        if hasattr(self, "rig"):
            self.rig.check()
            assert len(self.worker) + len(self.worker.results) == len(self.manager._flights)

    def teardown(self):
        if hasattr(self, "rig"):
            while self.hits:
                self.hits.pop().release()
            self.rig.finish()
            assert not self.manager._flights
            for pool in filter(None, (self.manager.host, self.manager.disk)):
                assert pool.statistics().leased == 0


TestManagerModel = ManagerModel.TestCase
TestManagerModel.settings = settings(max_examples=150, stateful_step_count=40)
