"""Which cached slot goes first."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tenuto.errors import InvariantError

Slots = npt.NDArray[np.int32]
"""Slot numbers, in one dimension."""


class Policy(Protocol):
    """Chooses victims among the slots that nobody leases. Called under the pool's lock, in batches.

    A policy sees slot numbers and hashes and nothing else.
    """

    def grow(self, n_slots: int) -> None:
        """The pool has `n_slots` slots from now on."""
        ...

    def cached(self, slots: Slots, hashes: list[bytes]) -> None:
        """These slots, in chain order, can be evicted from now on."""
        ...

    def leased(self, slots: Slots) -> None:
        """These slots were matched, or lost their content: they can't be evicted for now."""
        ...

    def evict(self, n: int) -> list[int]:
        """Up to `n` victims, in order; they count as leased from now on."""
        ...


def victims_of(policy: Policy, n: int, states: npt.NDArray[np.uint8], leases: npt.NDArray[np.int32]) -> list[int]:
    """`n` slots that a policy chose. Raises `InvariantError` for others than cached ones: two would write one slot."""
    victims = policy.evict(n)
    array = np.array(victims, np.int32).view(np.uint32)  # below 0 is out of range, too
    try:
        are_cached = bool(states.take(array).all()) and not leases.take(array).any()
    except IndexError:
        are_cached = False
    if not (are_cached and len(victims) == len(set(victims)) == n):
        raise InvariantError(f"{type(policy).__name__} was to choose {n} cached slots, and chose {victims[:8]}")
    return victims


class LRU:
    """Least recently released first; within one chain, the tail before the head.

    A slot is evictable while its entry in `_stamps` is the stamp it was queued with; older queue entries
    of it are stale and skipped. Everything is done a batch at a time.
    """

    def __init__(self) -> None:
        self._stamps: npt.NDArray[np.int64] = np.zeros(0, np.int64)  # 0: not evictable
        self._queue: deque[tuple[Slots, npt.NDArray[np.int64]]] = deque()
        self._n_queued = 0
        self._clock = 1

    def grow(self, n_slots: int) -> None:
        """See `Policy`."""
        more = np.zeros(n_slots - len(self._stamps), np.int64)
        self._stamps = np.concatenate([self._stamps, more])

    def cached(self, slots: Slots, hashes: list[bytes]) -> None:
        """See `Policy`."""
        del hashes
        if not len(slots):
            return
        tail_first = slots[::-1].copy()
        stamps = np.arange(self._clock, self._clock + len(slots), dtype=np.int64)
        self._clock += len(slots)
        self._stamps[tail_first] = stamps
        self._queue.append((tail_first, stamps))
        self._n_queued += len(slots)
        if self._n_queued > 2 * len(self._stamps) + 1024:
            self._compact()

    def leased(self, slots: Slots) -> None:
        """See `Policy`."""
        self._stamps[slots] = 0

    def evict(self, n: int) -> list[int]:
        """See `Policy`."""
        victims: list[int] = []
        while self._queue and len(victims) < n:
            slots, stamps = self._queue.popleft()
            self._n_queued -= len(slots)
            live: npt.NDArray[Any] = np.flatnonzero(self._stamps[slots] == stamps)
            take = live[: n - len(victims)]
            victims += slots[take].tolist()
            if len(take) < len(live):
                rest = live[len(take) :]
                self._queue.appendleft((slots[rest], stamps[rest]))
                self._n_queued += len(rest)
        self._stamps[np.array(victims, np.int32)] = 0
        return victims

    def _compact(self) -> None:
        slots = np.concatenate([slots for slots, _ in self._queue])
        stamps = np.concatenate([stamps for _, stamps in self._queue])
        live = self._stamps[slots] == stamps
        self._queue = deque([(slots[live], stamps[live])])
        self._n_queued = int(live.sum())
