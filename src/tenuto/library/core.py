"""What a cache and its leases share: the device's blocks, the tiers below, and the lock that calls take turns by."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from tenuto.config import Runtime
from tenuto.errors import FullError, StateError
from tenuto.library.below import TiersBelow
from tenuto.library.sequence import TokenSequence
from tenuto.manager import Filled
from tenuto.memory.blockmemory import BlockMemory
from tenuto.memory.pages import PageRun
from tenuto.metrics import ASKED_TOKENS, ENGINE_TOKENS
from tenuto.pools import Full, Lease, Policy, Pool, WritableLease
from tenuto.pools.facts import Removed, Stored, TierKind
from tenuto.pools.policies import Priority
from tenuto.tokens import BlockHash, ExtraKeys, Namespace

_PAUSE_S = 0.002
"""Between two looks for room that other threads make."""


class CacheCore:
    """Thread-safe; each method is one turn, but `allocate`, which waits without the lock."""

    def __init__(
        self,
        memory: BlockMemory,
        pool: Pool,
        below: TiersBelow,
        namespace: Namespace,
        runtime: Runtime,
        policies: Sequence[Policy],
    ) -> None:
        self.memory = memory
        self.pool = pool
        """Of the device's blocks."""
        self.below = below
        self.runtime = runtime
        self._policies = policies
        self._identity = namespace
        self._namespace = namespace
        self._lock = threading.Lock()
        self._holder = 0  # the thread whose turn it is
        self._pid = os.getpid()
        self._is_closed = False

    @property
    def page_tokens(self) -> int:
        """Tokens of a block."""
        return self.memory.layout.page_tokens

    @contextmanager
    def turn(self) -> Generator[None]:
        """Hold the lock. Raises `StateError` when the cache is closed, and in a process that was forked off."""
        if os.getpid() != self._pid:  # it has neither our threads nor our host memory, and perhaps the lock for ever
            raise StateError("the cache was opened by another process, from which this one was forked; open one here")
        with self._held():
            if self._is_closed:
                raise StateError("the cache is closed")
            yield

    @contextmanager
    def _held(self) -> Generator[None]:
        if self._holder == threading.get_ident():  # it would wait for itself
            raise StateError("the cache is called inside one of its own calls, as by a handler of a signal")
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = 0

    def allocate(self, n_blocks: int, timeout_s: float) -> WritableLease:
        """Empty slots. Raises `FullError` when they can't be had in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self.turn():
                self.below.turn()
                answer = self.pool.allocate(n_blocks)
                if not isinstance(answer, Full):
                    self.below.feed.tell(Removed, TierKind.DEVICE, answer.evicted)
                    return answer.lease
            if time.monotonic() >= deadline or n_blocks > len(self.pool):
                larger = "open with a larger layout.n_blocks"
                fix = larger if n_blocks > len(self.pool) else f"release leases, give timeout_s, or {larger}"
                raise FullError(
                    f"device: {n_blocks} blocks wanted, {answer.available} of {len(self.pool)} to be had: {fix}"
                )
            time.sleep(_PAUSE_S)

    def empty(self, lease: WritableLease) -> WritableLease:
        """As many slots, RESET; the same ones, unless others wait for some."""
        with self.turn():
            n_blocks = len(lease)
            lease.discard()
            answer = self.pool.allocate(n_blocks)
            assert not isinstance(answer, Full)  # slots are taken in turns alone
            self.below.feed.tell(Removed, TierKind.DEVICE, answer.evicted)
            return answer.lease

    def begin(self, extra: ExtraKeys) -> TokenSequence:
        """A sequence without tokens."""
        return TokenSequence(self._namespace.digest, self.page_tokens, extra)

    def register(self, lease: WritableLease, n_blocks: int, sequence: TokenSequence, start: int) -> Lease:
        """Make the first `n_blocks` of a lease matchable, which are blocks of a sequence from `start`; send them down.

        They are taken out of the lease, which is consumed when they are all of it.
        """
        with self.turn():
            if sequence.chain.root != self._namespace.digest:
                raise StateError("cannot register blocks that were begun before the cache was reset; discard them")
            done = self.pool.register(lease if n_blocks == len(lease) else lease.split(range(n_blocks)))
            self.below.feed.tell(Stored, TierKind.DEVICE, done.new)
            held = done.lease
            runs = [PageRun((slot,)) for slot in held.slots]
            self.below.keep(Filled(sequence.chain, start, runs), self.runtime.load_timeout_s)
            return held

    def match(self, sequence: TokenSequence, timeout_s: float) -> Sequence[Lease]:
        """Lease the longest prefix of a sequence that any tier has: what was here, and what was brought."""
        with self.turn():
            here = self.pool.match(sequence.hashes)
            self.below.manager.recorder.add(ASKED_TOKENS, len(sequence.chain))
            self.below.manager.recorder.add(ENGINE_TOKENS, len(here) * self.page_tokens)
            if len(here) == len(sequence.hashes):
                return [here]
            return [here, self.below.bring(sequence.chain, len(here), timeout_s)]

    def prefer(self, hashes: Iterable[BlockHash], priority: int) -> None:
        """Tell the policies that take priorities. Raises `StateError` where none does."""
        with self.turn():
            found = [policy for policy in self._policies if isinstance(policy, Priority)]
            if not found:
                raise StateError(
                    'no tier\'s policy takes priorities; open the cache with policies={"host": "priority"}, or "disk", '
                    'or "device"'
                )
            hashes = list(hashes)
            for policy in found:
                policy.prefer(hashes, priority)

    def reset(self) -> None:
        """Forget every block in all tiers."""
        with self.turn():
            epoch = secrets.randbits(62) | 1
            self._namespace = self._identity.at_epoch(epoch)
            self.pool.reset()
            self.below.reset(self._namespace.digest, epoch)

    def close(self) -> None:
        """Write what is pending, up to the deadline, and end. Again, or in a process that was forked off: nothing."""
        if os.getpid() != self._pid:
            return
        with self._held():
            if not self._is_closed:
                self._is_closed = True
                self.below.close(self.runtime.shutdown_timeout_s)
