"""The one object of the library: device blocks of your own, and the tiers below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Self

from tenuto.library.blocks import Blocks, WritableBlocks
from tenuto.library.core import CacheCore
from tenuto.library.sequence import extra_of
from tenuto.memory.blocklayout import Layout
from tenuto.memory.blockmemory import BlockMemory
from tenuto.tokens import ExtraKeys


class KVCache:
    """Blocks in device memory that are matched by their tokens; below it host memory, and a disk that remembers.

    What is registered goes down at once: into host memory, and from there to disk. Where memory is short, blocks leave
    the device, then host memory, those used longest ago first unless another policy was chosen, and `match` brings them
    back. Every block is verified when it is read from disk. Made by `open_cache`; use it with ``with``, or `close` it.

    Thread-safe: calls take turns, so that one which waits holds up the others; leases may be released meanwhile. Calls
    that move blocks raise `StateError` once the cache is closed, in a process that was forked off, and inside another
    call, as from a handler of a signal. On a GPU, calls are made on the stream that computes: they come after what it
    has queued, so that a lease may be released once what uses its blocks is queued.
    """

    def __init__(self, core: CacheCore) -> None:
        self._core = core

    @property
    def layout(self) -> Layout:
        """Of the device's blocks."""
        return self._core.memory.layout

    @property
    def memory(self) -> BlockMemory:
        """Where they lie: `memory.view` takes the block numbers that `Blocks.slots` gives."""
        return self._core.memory

    def allocate(self, n_blocks: int = 1, timeout_s: float = 0.0) -> WritableBlocks:
        """`n_blocks` empty blocks to be filled; where too few are free, the policy's choice of others is evicted.

        Raises `FullError` when so many can't be had within `timeout_s`: others are leased, or the layout has fewer.
        Raises `ValueError` for fewer than one.
        """
        if n_blocks < 1:
            raise ValueError(f"{n_blocks} blocks are none to be filled")
        return WritableBlocks(self._core, self._core.allocate(n_blocks, timeout_s))

    def match(self, token_ids: Sequence[int], salt: str | ExtraKeys = "", timeout_s: float | None = None) -> Blocks:
        """The longest prefix of whole blocks that any tier has, brought into device memory: perhaps of no block.

        `salt`: as the blocks were filled with. Waits for the load. What has not come within `timeout_s` (None:
        `runtime.load_timeout_s`), or does not verify, is a miss, as is what has no room on the device beside what is
        leased. Raises `StateError` for what is no token (0 to 2³² - 1).
        """
        sequence = self._core.begin(extra_of(salt))
        sequence.append(token_ids)
        timeout_s = self._core.runtime.load_timeout_s if timeout_s is None else timeout_s
        return Blocks(self._core, sequence, 0, self._core.match(sequence, timeout_s))

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all that was registered is in host memory, and on disk where there is one; whether it was in time.

        A block that found no room there, or whose write failed, is not waited for: see `statistics`.
        """
        with self._core.turn():
            return self._core.below.drain(timeout_s)

    def reset(self) -> None:
        """Forget every block in all tiers. Leases stay good until they are released, with bytes as they were.

        What is registered after it is not found by the next process, nor by others on the same folder.
        """
        self._core.reset()

    def statistics(self) -> dict[str, int]:
        """What was moved, skipped and failed so far, and what the tiers hold now, by the keys of `metrics.TABLE`.

        Counts of blocks; of bytes where a key says so, and of transfers in "flights". "device.*" are the slot counts of
        the device's blocks.
        """
        device = {f"device.{name}": n for name, n in asdict(self._core.pool.statistics()).items()}
        return self._core.below.manager.statistics() | device

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        with self._core.turn():
            self._core.pool.check()
            self._core.below.manager.check()

    def close(self) -> None:
        """Write what is pending, within `runtime.shutdown_timeout_s`, and give all up but the buffer."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<KVCache {self._core.pool!r} {self._core.below.manager!r}>"
