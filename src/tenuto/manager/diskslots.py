"""The slots of the disk's pool as the ranks have them: how many, what was found in them, what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenuto.manager.telling import Telling
from tenuto.pools import Full, Pool, WritableLease
from tenuto.pools.facts import TierKind
from tenuto.tokens import BlockHash, BlockKey


class DiskSlots:
    """Grows and fills `pool`, and tells. A store may have more slots than room: so many are kept empty (`n_empty`)."""

    def __init__(self, pool: Pool, told: Telling) -> None:
        self._pool = pool
        self._told = told
        self._leases: list[WritableLease] = []
        self._n_usable: int | None = None
        self.n_empty = 0
        """Slots that no block may be in."""

    def resize(self, n_slots: int, n_blocks: int | None) -> None:
        """There are `n_slots`, `n_blocks` of which (None: all) may hold blocks at once."""
        self._pool.grow(n_slots)
        self._n_usable = n_blocks
        self._settle()

    def restore(self, entries: Sequence[tuple[int, BlockKey]]) -> None:
        """Blocks that were found in free slots, oldest first."""
        self._lift()  # from slots that may be theirs
        self._pool.restore(entries)
        self._told.stored(TierKind.DISK, [key for _, key in entries])
        self._settle()

    def changed(self, moved: Iterable[tuple[BlockKey, str]], lost: Iterable[BlockHash]) -> None:
        """Blocks lie on other volumes now, and some are gone; those that the pool lacks are no news."""
        self._told.moved((key, volume) for key, volume in moved if key.hash in self._pool)
        self._told.removed(TierKind.DISK, self._pool.invalidate(lost))

    def _lift(self) -> None:
        while self._leases:
            self._leases.pop().discard()
        self.n_empty = 0

    def _settle(self) -> None:
        """Keep as many empty as need be, as far as leases allow now."""
        wanted = 0 if self._n_usable is None else max(0, len(self._pool) - self._n_usable)
        if wanted < self.n_empty:
            self._lift()
        if wanted > self.n_empty:
            answer = self._pool.allocate(wanted - self.n_empty)
            if isinstance(answer, Full):
                answer = self._pool.allocate(answer.available)
            if not isinstance(answer, Full):
                self._leases.append(answer.lease)
                self.n_empty += len(answer.lease)
                self._told.removed(TierKind.DISK, answer.evicted)
