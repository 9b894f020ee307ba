"""What a stream's messages come to: blocks by tier and volume, chains, changes, lag."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable

from tenuto.cli.top.looks import EventsLook, Holding, WorkerLook
from tenuto.events import Batch, Index, Kind, Message, Place
from tenuto.events.batch import KINDS, TIERS

N_LARGEST = 5
HIDDEN_S = 600.0
"""A worker that is silent for so long is not shown: one that is started again may have another name."""

_SETTLE_S = 1.0
_COUNT_SHARE = 0.1
"""Of the time at most goes into counting chains, however many blocks there are."""

Worker = tuple[str, str, int]


class Tally:
    """Takes what a subscription yields, in order, on one thread; `clock` is the looker's, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall = wall
        self._index = Index()
        self._stored: Counter[Place] = Counter()
        self._removed: Counter[Place] = Counter()
        self._block_bytes: dict[Place, int] = {}
        self._began_s: dict[Worker, float] = {}
        self._heard_s: dict[Worker, float] = {}
        self._lag_s: dict[Worker, float] = {}
        self._snapshots: Counter[Worker] = Counter()
        self._lost: Counter[Worker] = Counter()
        self._chains: dict[Place, tuple[int, tuple[tuple[str, int], ...]]] = {}
        self._changed: set[Place] = set()
        self._count_at = 0.0

    def take(self, message: Message) -> None:
        """Take in a batch, or a part of a snapshot."""
        self._index.take(message)
        worker, now_s = message.source.place, self._clock()
        self._heard_s[worker] = now_s
        began_s = self._began_s.setdefault(worker, now_s)
        is_batch = isinstance(message, Batch)
        if not is_batch:
            self._snapshots[worker] += message.is_last
        else:
            lag_s = max(0.0, self._wall() - message.time_ms / 1000)
            if lag_s < _SETTLE_S or now_s - began_s >= _SETTLE_S or not message.groups:  # else it may be told again
                self._lag_s[worker] = lag_s
        for group in message.groups:
            if group.kind not in KINDS:
                continue  # of a later version, and so may be its tier
            place = Place(*worker, TIERS[group.tier], group.volume)
            self._changed.add(place)
            if group.kind == Kind.LOST:
                self._lost[worker] += group.block_bytes
                continue
            if group.kind == Kind.STORED:
                self._block_bytes[place] = group.block_bytes
            if is_batch and group.kind <= Kind.REMOVED:
                (self._stored if group.kind == Kind.STORED else self._removed)[place] += group.n_events

    def look(self, n_gaps: int = 0, n_snapshots: int = 0, n_answering: int = 0) -> EventsLook:
        """All of it as it is now."""
        now_s = self._clock()
        if now_s >= self._count_at:
            self._count_chains()
            counted_s = self._clock()
            self._count_at = counted_s + (counted_s - now_s) / _COUNT_SHARE
        places: dict[Worker, list[Place]] = {worker: [] for worker in self._index.sources}
        for place in self._index.places:
            places[place.worker_place].append(place)
        workers = (
            WorkerLook(
                *worker, self._heard_s[worker], self._lag_s.get(worker), self._snapshots[worker], self._lost[worker],
                tuple(map(self._holding, sorted(held, key=lambda place: (TIERS.index(place.tier), place.volume)))),
            )
            for worker, held in sorted(places.items())
            if now_s - self._heard_s[worker] < HIDDEN_S
        )  # fmt: skip
        return EventsLook(now_s, tuple(workers), n_gaps, n_snapshots, n_answering)

    def _holding(self, place: Place) -> Holding:
        n_blocks = len(self._index.places[place])
        return Holding(
            place.tier.value, place.volume, n_blocks, n_blocks * self._block_bytes.get(place, 0),
            self._stored[place], self._removed[place], *self._chains.get(place, (0, ())),
        )  # fmt: skip

    def _count_chains(self) -> None:
        for place in self._changed & self._index.places.keys():
            chains = Counter(prefix for _, prefix in self._index.places[place].values())
            largest = heapq.nlargest(N_LARGEST, chains.items(), key=lambda chain: (chain[1], chain[0]))
            self._chains[place] = len(chains), tuple((prefix.hex(), n) for prefix, n in largest)
        self._changed.clear()
