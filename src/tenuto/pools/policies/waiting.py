"""Leaves that wait to go, in queues by level and age."""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from itertools import count

from tenuto.pools.policies.reuse import EDGES, N_AGES, ReuseModel
from tenuto.pools.policies.runs import Run

_LATER: list[float] = EDGES[1:-1].tolist()
_MOST_MOVED = 2048
_Entry = tuple[int, int, Run]  # when it was used; the ticket, as a number below zero


class WaitingRuns:
    """Runs by the number of their queue: level x N_AGES + age class; in a queue the longest unused first.

    An entry counts while its run has its ticket; older ones are skipped when they are met.
    """

    def __init__(self, model: ReuseModel) -> None:
        self._model = model
        self._queues: dict[int, list[_Entry]] = {}  # heaps; none of them is empty
        self._tickets = count(1)
        self._n_entries = 0
        self._most_entries = 1024
        self._best = -1  # the queue whose score is lowest; -1: not known

    def put(self, run: Run, now: int, young: int) -> None:
        """This run is a leaf from now on. It is young while it was used within `young` blocks."""
        ticket = run.ticket = next(self._tickets)
        age = now - run.used_at
        queue = self._model.level_of(run.uses, run.group, run.is_end) * N_AGES
        if age > young:
            queue += max(bisect_right(_LATER, age), 1)
        entries = self._queues.get(queue)
        if entries is None:
            self._queues[queue] = entries = []
            if self._best >= 0 and self._model.scores[queue] < self._model.scores[self._best]:
                self._best = queue
        heappush(entries, (run.used_at, -ticket, run))
        self._n_entries += 1
        if self._n_entries > self._most_entries:
            self._compact()

    def pop(self) -> Run | None:
        """The leaf of the queue whose score is lowest that was used longest ago; it is in no queue any more."""
        while self._queues:
            if self._best < 0:
                self._best = min(self._queues, key=self._model.scores.__getitem__)
            entries = self._queues[self._best]
            _, ticket, run = heappop(entries)
            self._n_entries -= 1
            if not entries:
                del self._queues[self._best]
                self._best = -1
            if run.ticket == -ticket:
                run.ticket = 0
                return run
        return None

    def grow_older(self, now: int, young: int) -> bool:
        """Runs that have become older go to the queues of their age; whether all have.

        Must be called when scores are new. A call moves some thousand at most: more wait for the next one.
        """
        self._best, n_left = -1, _MOST_MOVED
        for number in sorted(self._queues):
            age = number % N_AGES
            if age == N_AGES - 1:
                continue
            entries = self._queues[number]
            last = now - (max(_LATER[0], young + 1) if age == 0 else _LATER[age])
            while entries and entries[0][0] <= last:
                if not n_left:
                    return False
                n_left -= 1
                entry = heappop(entries)
                if entry[2].ticket != -entry[1]:
                    self._n_entries -= 1
                    continue
                older = number - age + min(bisect_right(_LATER, now - entry[0]), N_AGES - 1)
                target = self._queues.get(older)
                if target is None:
                    target = self._queues[older] = []
                heappush(target, entry)
            if not entries:
                del self._queues[number]
        return True

    def _compact(self) -> None:
        """Drop entries that do not count."""
        self._n_entries, self._best = 0, -1
        for number, entries in list(self._queues.items()):
            kept = [entry for entry in entries if entry[2].ticket == -entry[1]]
            heapify(kept)
            self._n_entries += len(kept)
            if kept:
                self._queues[number] = kept
            else:
                del self._queues[number]
        self._most_entries = 2 * self._n_entries + 1024
