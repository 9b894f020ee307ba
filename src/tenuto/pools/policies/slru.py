"""Segmented LRU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tenuto.pools.policies.lru import StampQueue, Stamps
from tenuto.pools.policies.protocol import Slots, Where
from tenuto.tokens import BlockHash, BlockKey

_PROTECTED = 0.8  # of all slots: the share that Caffeine and the paper's follow-ups use
_HORIZON = 8  # pools' worth of hashes that are remembered


class SLRU:
    """Blocks that were used again outlive those that were not.

    Segmented LRU: Karedla, Love, Wherry, "Caching strategies to improve disk system performance", Computer 27 (1994).
    New blocks go to a probationary queue, and what is used again to a protected one of at most four fifths of the
    slots, whose oldest go back to the first. What was used before it left the pool, and comes again, is protected, too
    (hashes are remembered, as ARC's ghosts: Megiddo, Modha, FAST 2003): without this a small pool never sees a second
    use.
    """

    def __init__(self) -> None:
        self._stamps = Stamps()
        self._probation, self._protected = StampQueue(self._stamps), StampQueue(self._stamps)
        self._segments: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)  # 0: no content, 1: on probation, 2: protected
        self._n_protected = 0
        self._seen: OrderedDict[BlockHash, None] = OrderedDict()

    def grow(self, n_slots: int) -> None:
        """See `Policy`."""
        self._stamps.grow(n_slots)
        self._segments = np.concatenate([self._segments, np.zeros(n_slots - len(self._segments), np.uint8)])

    def cached(self, slots: Slots, keys: Sequence[BlockKey], where: Where) -> None:
        """See `Policy`."""
        del where
        tail_first = slots[::-1].copy()
        is_known = (self._segments[tail_first] > 0) | self._see([key.hash for key in reversed(keys)])
        fresh, again = tail_first[~is_known], tail_first[is_known]
        self._n_protected += int((self._segments[again] != 2).sum())
        self._segments[again], self._segments[fresh] = 2, 1
        self._probation.put(fresh)
        self._protected.put(again)
        n_over = self._n_protected - int(_PROTECTED * len(self._segments))
        if n_over > 0:
            demoted = self._protected.take(n_over)
            self._segments[demoted] = 1
            self._n_protected -= len(demoted)
            self._probation.put(demoted)

    def leased(self, slots: Slots) -> None:
        """See `Policy`."""
        self._stamps.of[slots] = 0

    def forgotten(self, slots: Slots) -> None:
        """See `Policy`."""
        self._stamps.of[slots] = 0
        self._n_protected -= int((self._segments[slots] == 2).sum())
        self._segments[slots] = 0

    def evict(self, n: int) -> list[int]:
        """See `Policy`."""
        first = self._probation.take(n)
        victims = np.concatenate([first, self._protected.take(n - len(first))])
        self.forgotten(victims)
        found: list[int] = victims.tolist()
        return found

    def _see(self, hashes: list[BlockHash]) -> npt.NDArray[np.bool_]:
        """Which of these were seen before; they are from now on."""
        seen = self._seen
        are_known = np.array([block in seen for block in hashes], bool)
        for block in hashes:
            seen[block] = None
            seen.move_to_end(block)
        while len(seen) > _HORIZON * len(self._segments):
            seen.popitem(last=False)
        return are_known
