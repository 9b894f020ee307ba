"""The one object of the library: device blocks of your own, and the tiers below them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Self

from tenuto.config import Runtime
from tenuto.errors import FullError, StateError
from tenuto.library.below import TiersBelow
from tenuto.library.blocks import Blocks, WritableBlocks
from tenuto.library.sequence import TokenSequence, extra_of
from tenuto.manager import Filled
from tenuto.memory.blocklayout import Layout
from tenuto.memory.blockmemory import BlockMemory
from tenuto.memory.pages import PageRun
from tenuto.pools import Full, Pool, WritableLease
from tenuto.tokens import ExtraKeys, Namespace

_TURN_S = 0.05


class KVCache:
    """Blocks in device memory that are matched by their tokens; below it host memory, and a disk that remembers.

    What is registered goes down at once: into host memory, and from there to disk. Where memory is short, the blocks
    used longest ago leave the device, then host memory, and `match` brings them back. Every block is verified when it
    is read from disk. Made by `open_cache`; use it with ``with``, or `close` it. Thread-safe: calls take turns, so that
    one which waits holds up the others; leases may be released meanwhile.
    """

    def __init__(
        self, memory: BlockMemory, pool: Pool, below: TiersBelow, namespace: Namespace, runtime: Runtime
    ) -> None:
        self.memory = memory
        self.layout: Layout = memory.layout
        self.pool = pool
        """Of the device's blocks."""
        self._below = below
        self._identity = namespace
        self._namespace = namespace
        self._runtime = runtime
        self._lock = threading.RLock()
        self._is_closed = False

    # -- filling ------------------------------------------------------------------------------------

    def allocate(self, n_blocks: int = 1, timeout_s: float = 0.0) -> WritableBlocks:
        """Empty blocks to be filled, evicting those used longest ago.

        Raises `FullError` when so many can't be had within `timeout_s`: more are leased, or there are no more.
        """
        if n_blocks < 1:
            raise ValueError(f"{n_blocks} blocks are none to be filled")
        with self._turn():
            return WritableBlocks(self, self._allocate(n_blocks, timeout_s))

    def empty(self, lease: WritableLease) -> WritableLease:
        """The same slots, RESET again; for `WritableBlocks.reset`."""
        with self._turn():
            n_blocks = len(lease)
            lease.discard()
            return self._allocate(n_blocks, 0.0)

    def begin(self, extra: ExtraKeys) -> TokenSequence:
        """A sequence without tokens."""
        return TokenSequence(self._namespace.digest, self.layout.page_tokens, extra)

    def register(self, lease: WritableLease, sequence: TokenSequence, start: int) -> Blocks:
        """Make COMPLETE blocks of a sequence matchable, and send them down; for `WritableBlocks.register`."""
        with self._turn():
            if sequence.chain.root != self._namespace.digest:
                raise StateError("cannot register blocks that were begun before the cache was reset; discard them")
            held = self.pool.register(lease).lease
            blocks = Blocks(self, sequence, start, [held])
            runs = [PageRun((slot,)) for slot in held.slots]
            self._below.keep(Filled(sequence.chain, start, runs), self._runtime.load_timeout_s)
            return blocks

    # -- using --------------------------------------------------------------------------------------

    def match(self, token_ids: Sequence[int], salt: str | ExtraKeys = "", timeout_s: float | None = None) -> Blocks:
        """The longest prefix of whole blocks that any tier has, brought into device memory: perhaps nothing.

        Waits for the load. What has not come within `timeout_s` (None: `runtime.load_timeout_s`), or does not verify,
        is a miss, as is what has no room on the device beside what is leased.
        """
        sequence = self.begin(extra_of(salt))
        sequence.append(token_ids)
        with self._turn():
            leases = [self.pool.match(sequence.hashes)]
            if len(leases[0]) < len(sequence.hashes):
                timeout_s = self._runtime.load_timeout_s if timeout_s is None else timeout_s
                leases.append(self._below.bring(sequence.chain, len(leases[0]), timeout_s))
            return Blocks(self, sequence, 0, leases)

    # -- all of it ----------------------------------------------------------------------------------

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all that was registered is in host memory, and on disk where there is one; whether it is in time.

        A block that found no room there, or whose write failed, is not waited for: see `statistics`.
        """
        with self._turn():
            return self._below.drain(timeout_s)

    def reset(self) -> None:
        """Forget every block in all tiers. Leases stay good until they are released, with bytes as they were."""
        with self._turn():
            epoch = secrets.randbits(62) | 1
            self._namespace = self._identity.at_epoch(epoch)
            self.pool.reset()
            self._below.reset(self._namespace.digest, epoch)

    def statistics(self) -> dict[str, int]:
        """What was moved, skipped and failed so far, and what the tiers hold, by the keys of `metrics.TABLE`.

        "device.*" are the slot counts of the device's blocks.
        """
        with self._lock:
            device = {f"device.{name}": n for name, n in asdict(self.pool.statistics()).items()}
            return self._below.manager.statistics() | device

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        with self._turn():
            self.pool.check()
            self._below.manager.check()

    def close(self) -> None:
        """Write what is pending, within `runtime.shutdown_timeout_s`, and give all up but the buffer."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._below.close(self._runtime.shutdown_timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<KVCache {self.pool!r} {self._below.manager!r}>"

    # -- inside -------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Generator[None]:
        with self._lock:
            if self._is_closed:
                raise StateError("the cache is closed")
            yield

    def _allocate(self, n_blocks: int, timeout_s: float) -> WritableLease:
        deadline = time.monotonic() + timeout_s
        self._below.turn()
        while isinstance(answer := self.pool.allocate(n_blocks), Full):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise FullError(
                    f"device: {n_blocks} blocks wanted, {answer.available} of {len(self.pool)} to be had: "
                    "release leases, or open with a larger layout.n_blocks"
                )
            self._below.turn(min(left_s, _TURN_S))
        return answer.lease
