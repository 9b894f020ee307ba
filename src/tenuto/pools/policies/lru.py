"""Least recently used, and the queue of batches it is made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tenuto.pools.policies.protocol import Slots, Where
from tenuto.tokens import BlockKey


class StampQueue:
    """Slots in the order in which they were put in; all in batches.

    A slot is queued while its entry in `stamps` is the stamp it was queued with; older entries of it are stale and
    skipped. Several queues may share one array of stamps, and a slot is in one of them at most.
    """

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._queue: deque[tuple[Slots, npt.NDArray[np.int64]]] = deque()
        self._n_queued = 0

    def __len__(self) -> int:
        """Entries, with stale ones."""
        return self._n_queued

    def put(self, slots: Slots) -> None:
        """Queue these slots, the first to go first, behind all others; they leave whatever queue they were in."""
        if not len(slots):
            return
        self._queue.append((slots, self._stamps.draw(slots)))
        self._n_queued += len(slots)
        if self._n_queued > 2 * len(self._stamps.of) + 1024:
            self._compact()

    def take(self, n: int) -> Slots:
        """The first `n`, or all there are; they are in no queue then."""
        victims: list[Slots] = []
        n_taken = 0
        while self._queue and n_taken < n:
            slots, stamps = self._queue.popleft()
            self._n_queued -= len(slots)
            live: npt.NDArray[Any] = np.flatnonzero(self._stamps.of[slots] == stamps)
            take = live[: n - n_taken]
            victims.append(slots[take])
            n_taken += len(take)
            if len(take) < len(live):
                rest = live[len(take) :]
                self._queue.appendleft((slots[rest], stamps[rest]))
                self._n_queued += len(rest)
        taken = np.concatenate(victims) if victims else np.zeros(0, np.int32)
        self._stamps.of[taken] = 0
        return taken

    def _compact(self) -> None:
        slots = np.concatenate([slots for slots, _ in self._queue])
        stamps = np.concatenate([stamps for _, stamps in self._queue])
        live = self._stamps.of[slots] == stamps
        self._queue = deque([(slots[live], stamps[live])])
        self._n_queued = int(live.sum())


class Stamps:
    """One number a slot, that of its last entry in a queue; 0: in none."""

    def __init__(self) -> None:
        self.of: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._next = 1

    def grow(self, n_slots: int) -> None:
        """There are `n_slots` slots from now on."""
        self.of = np.concatenate([self.of, np.zeros(n_slots - len(self.of), np.int64)])

    def draw(self, slots: Slots) -> npt.NDArray[np.int64]:
        """New stamps for these slots."""
        stamps = np.arange(self._next, self._next + len(slots), dtype=np.int64)
        self._next += len(slots)
        self.of[slots] = stamps
        return stamps


class LRU:
    """Least recently released first; within one chain, the tail before the head."""

    def __init__(self) -> None:
        self._stamps = Stamps()
        self._queue = StampQueue(self._stamps)

    def grow(self, n_slots: int) -> None:
        """See `Policy`."""
        self._stamps.grow(n_slots)

    def cached(self, slots: Slots, keys: Sequence[BlockKey], where: Where) -> None:
        """See `Policy`."""
        del keys, where
        self._queue.put(slots[::-1].copy())

    def leased(self, slots: Slots) -> None:
        """See `Policy`."""
        self._stamps.of[slots] = 0

    def forgotten(self, slots: Slots) -> None:
        """See `Policy`."""
        self._stamps.of[slots] = 0

    def evict(self, n: int) -> list[int]:
        """See `Policy`."""
        victims: list[int] = self._queue.take(n).tolist()
        return victims
