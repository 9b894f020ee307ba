"""W-TinyLFU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tenuto.pools.policies.lru import StampQueue, Stamps
from tenuto.pools.policies.protocol import Slots, Where
from tenuto.pools.policies.sketch import CountSketch
from tenuto.tokens import BlockHash, BlockKey

_WINDOW = 0.01  # of all slots
_PROTECTED = 0.8  # of the others


class TinyLFU:
    """New blocks stay only when they are asked for more often than what they would replace.

    Einziger, Friedman, Manes, "TinyLFU: a highly efficient cache admission policy", ACM TOS 13(4), 2017: a window of a
    hundredth of the slots in LRU order, behind it a segmented LRU; what leaves the window and what is oldest on
    probation are compared by counts of a sketch, and the one seen less goes.
    """

    def __init__(self) -> None:
        self._stamps = Stamps()
        self._queues = [StampQueue(self._stamps) for _ in range(3)]  # window, probation, protected
        self._n_in = [0, 0, 0]
        self._segments: npt.NDArray[np.int8] = np.zeros(0, np.int8)  # the queue of each; -1: no content
        self._hashes: list[BlockHash] = []
        self._sketch = CountSketch(1, 1)

    def grow(self, n_slots: int) -> None:
        """See `Policy`."""
        more = n_slots - len(self._segments)
        self._stamps.grow(n_slots)
        self._segments = np.concatenate([self._segments, np.full(more, -1, np.int8)])
        self._hashes += [BlockHash(b"")] * more
        self._sketch = CountSketch(8 * max(n_slots, 64), 10 * max(n_slots, 64))

    def cached(self, slots: Slots, keys: Sequence[BlockKey], where: Where) -> None:
        """See `Policy`."""
        del where
        hashes = [key.hash for key in keys]
        self._sketch.add(hashes)
        for slot, block in zip(slots.tolist(), hashes, strict=True):
            self._hashes[slot] = block
        tail_first = slots[::-1].copy()
        now = self._segments[tail_first]
        self._put(0, tail_first[now <= 0])
        self._put(2, tail_first[now > 0])
        n_main = len(self._segments) - int(_WINDOW * len(self._segments))
        n_over = self._n_in[2] - int(_PROTECTED * n_main)
        if n_over > 0:
            self._put(1, self._queues[2].take(n_over))

    def leased(self, slots: Slots) -> None:
        """See `Policy`."""
        self._stamps.of[slots] = 0

    def forgotten(self, slots: Slots) -> None:
        """See `Policy`."""
        self._stamps.of[slots] = 0
        for number in range(3):
            self._n_in[number] -= int((self._segments[slots] == number).sum())
        self._segments[slots] = -1

    def evict(self, n: int) -> list[int]:
        """See `Policy`."""
        victims: list[Slots] = []
        n_over = max(self._n_in[0] - max(int(_WINDOW * len(self._segments)), 1), 0)
        candidates = self._queues[0].take(n_over)
        while n > 0 and len(candidates):
            n_now = min(n, len(candidates))
            new, candidates = candidates[:n_now], candidates[n_now:]
            old = self._queues[1].take(n_now)
            loses = np.ones(n_now, bool)
            loses[: len(old)] = self._counts(new[: len(old)]) <= self._counts(old)
            victims += [new[loses], old[~loses[: len(old)]]]
            self._put(1, old[loses[: len(old)]])
            self._put(1, new[~loses])
            n -= n_now
        self._put(1, candidates)
        for number in (1, 0, 2):
            victims.append(self._queues[number].take(n))
            n -= len(victims[-1])
        gone = np.concatenate(victims)
        self.forgotten(gone)
        found: list[int] = gone.tolist()
        return found

    def _counts(self, slots: Slots) -> npt.NDArray[np.uint8]:
        numbers: list[int] = slots.tolist()
        return self._sketch.count([self._hashes[slot] for slot in numbers])

    def _put(self, number: int, slots: Slots) -> None:
        """Into a queue, the first to go first."""
        if len(slots):
            before = self._segments[slots]
            for other in range(3):
                self._n_in[other] -= int((before == other).sum())
            self._n_in[number] += len(slots)
            self._segments[slots] = number
            self._queues[number].put(slots)
