"""Queues that give only blocks which no cached block continues."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tenuto.pools.policies.links import Links
from tenuto.pools.policies.lru import Stamps
from tenuto.pools.policies.protocol import Slots

_WINDOW = 64  # entries looked at beyond those wanted
_MOST_FREED = 256  # ancestors freed at once; those above them are when their turn comes


class Batch(NamedTuple):
    """Slots put in together, the first to go first, with their stamps."""

    slots: Slots
    stamps: npt.NDArray[np.int64]


class Taken(NamedTuple):
    """Victims, and slots that waited for them and are to be put in again, the first to go first."""

    victims: Slots
    freed: Slots


class LeafQueues:
    """Queues of batches, by number. A slot with children that is met is set aside until the last of them has gone."""

    def __init__(self) -> None:
        self.links = Links()
        self.stamps = Stamps()
        self.queues: dict[int, deque[Batch]] = {}
        """None of them is empty."""
        self.n_queued = 0
        """Entries, with stale ones."""
        self._is_waiting: npt.NDArray[np.bool_] = np.zeros(0, bool)

    def grow(self, n_slots: int) -> None:
        """There are `n_slots` slots from now on."""
        self._is_waiting = np.concatenate([self._is_waiting, np.zeros(n_slots - len(self._is_waiting), bool)])
        self.links.grow(n_slots)
        self.stamps.grow(n_slots)

    def put(self, number: int, slots: Slots, *, is_next: bool = False) -> None:
        """Into queue `number`, behind all others, or before them; out of whatever queue they were in."""
        if not len(slots):
            return
        self._is_waiting[slots] = False
        batch = Batch(slots, self.stamps.draw(slots))
        queue = self.queues.get(number)
        if queue is None:
            queue = self.queues[number] = deque()
        if is_next:
            queue.appendleft(batch)
        else:
            queue.append(batch)
        self.n_queued += len(slots)
        if self.n_queued > 2 * len(self.stamps.of) + 1024:
            self._compact()

    def remove(self, slots: Slots) -> None:
        """Out of their queues."""
        self.stamps.of[slots] = 0

    def lose(self, slots: Slots) -> Slots:
        """They have lost their content; what waited for them and is to be put in again."""
        self.remove(slots)
        return self._freed(self.links.lose(slots))

    def take(self, number: int, n: int) -> Taken:
        """Up to `n` victims from the front of a queue."""
        slots, stamps = self._gather(number, n)
        self.n_queued -= len(slots)
        is_live = self.stamps.of[slots] == stamps
        if not is_live.all():
            slots, stamps = slots[is_live], stamps[is_live]
        is_free = self._are_free(slots)
        if not is_free.all():
            self._is_waiting[slots[~is_free]] = True
            slots, stamps = slots[is_free], stamps[is_free]
        if len(slots) > n:
            self._put_back(number, Batch(slots[n:], stamps[n:]))
            self.n_queued += len(slots) - n
            slots = slots[:n]
        return Taken(slots, self.lose(slots))

    def _gather(self, number: int, n: int) -> Batch:
        """Batches of a queue, together as many entries as are wanted or a few more; of the last one a part."""
        queue = self.queues[number]
        taken: list[Batch] = []
        n_more = n
        while queue and n_more > 0:
            batch = queue.popleft()
            most = n_more + _WINDOW
            if len(batch.slots) > most:
                self._put_back(number, Batch(batch.slots[most:], batch.stamps[most:]))
                batch = Batch(batch.slots[:most], batch.stamps[:most])
            taken.append(batch)
            n_more -= len(batch.slots)
        if not queue:
            del self.queues[number]
        if len(taken) == 1:
            return taken[0]
        return Batch(
            np.concatenate([batch.slots for batch in taken]), np.concatenate([batch.stamps for batch in taken])
        )

    def _put_back(self, number: int, batch: Batch) -> None:
        self.queues.setdefault(number, deque()).appendleft(batch)

    def take_any(self, n: int) -> Slots:
        """Up to `n` victims where all that are left have children that are leased; the first to go first."""
        left = np.flatnonzero(self.stamps.of)
        victims = left[np.argsort(self.stamps.of[left])][:n].astype(np.int32)
        self.lose(victims)
        return victims

    def _are_free(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Of slots that go in this order, which have no children by the time it is their turn."""
        n_children = self.links.n_children[slots]
        if len(slots) < 2:
            return n_children == 0
        follows = np.zeros(len(slots), bool)  # its only child goes right before it
        follows[1:] = (self.links.parents[slots[:-1]] == slots[1:]) & (n_children[1:] == 1)
        first = np.maximum.accumulate(np.where(follows, 0, np.arange(len(slots))))
        return (n_children == 0)[first]

    def _freed(self, parents: Slots) -> Slots:
        """Of slots without children those that waited, each with the ancestors that wait for it alone."""
        waiting = parents[self._is_waiting[parents] & (self.stamps.of[parents] > 0)]
        if not len(waiting):
            return waiting
        found: list[int] = []
        for first in dict.fromkeys(waiting.tolist()):
            slot = first
            for _ in range(_MOST_FREED):
                found.append(slot)
                self._is_waiting[slot] = False
                slot = int(self.links.parents[slot])
                if (
                    slot < 0
                    or not (self._is_waiting[slot] and self.stamps.of[slot])
                    or self.links.n_children[slot] != 1
                ):
                    break
        return np.array(found, np.int32)

    def _compact(self) -> None:
        """Drop stale entries."""
        self.n_queued = 0
        for number, queue in list(self.queues.items()):
            kept: deque[Batch] = deque()
            for batch in queue:
                is_live = self.stamps.of[batch.slots] == batch.stamps
                if is_live.any():
                    kept.append(Batch(batch.slots[is_live], batch.stamps[is_live]))
                    self.n_queued += len(kept[-1].slots)
            if kept:
                self.queues[number] = kept
            else:
                del self.queues[number]
