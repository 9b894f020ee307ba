"""Which blocks are where, kept from the messages of any number of streams."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tenuto.events.batch import KINDS, TIERS, Batch, Group, Kind, Message, Source, cut
from tenuto.pools.facts import TierKind

Blocks = dict[bytes, tuple[bytes, bytes]]
"""Parent and prefix of each block, by its hash."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tier of one worker, or a volume of it."""

    node: str
    worker: str
    rank: int
    tier: TierKind
    volume: str = ""

    @property
    def worker_place(self) -> tuple[str, str, int]:
        """As `Source.place`."""
        return self.node, self.worker, self.rank


class Index:
    """Takes what a subscription yields, in order. Between two messages it is behind, never wrong in another way."""

    def __init__(self) -> None:
        self.places: dict[Place, Blocks] = {}
        """What each tier and volume of each worker has; those that never had anything are not there."""
        self.sources: dict[tuple[str, str, int], Source] = {}
        """Who publishes, by node, worker and rank."""
        self.heard_ms: dict[tuple[str, str, int], int] = {}
        """When each of them sent its last batch, in milliseconds since 1970 by its own clock."""
        self._streams: dict[tuple[str, str, int], bytes] = {}

    def take(self, message: Message) -> None:
        """Take in a batch, or a part of a snapshot. What is known already changes nothing."""
        source = message.source
        if self._streams.get(source.place) != message.stream or (not isinstance(message, Batch) and message.part == 0):
            self.forget(source.place)  # another stream: the publisher before is dead
            self._streams[source.place] = message.stream
        self.sources[source.place] = source
        if isinstance(message, Batch):
            self.heard_ms[source.place] = message.time_ms
        for group in message.groups:
            self._take_group(source, group)

    def forget(self, worker: tuple[str, str, int]) -> None:
        """Drop all that a worker was said to have: its node, name and rank."""
        for place in [place for place in self.places if place.worker_place == worker]:
            del self.places[place]
        self._streams.pop(worker, None)
        self.sources.pop(worker, None)
        self.heard_ms.pop(worker, None)

    def forget_silent(self, seconds: float, now_s: float | None = None) -> list[tuple[str, str, int]]:
        """Forget workers whose last batch is older: of a publisher that lives there is a heartbeat every `idle_s`."""
        oldest_ms = 1000 * ((time.time() if now_s is None else now_s) - seconds)
        silent = [worker for worker, heard_ms in self.heard_ms.items() if heard_ms < oldest_ms]
        for worker in silent:
            self.forget(worker)
        return silent

    def holders(self, block: bytes) -> list[Place]:
        """Where a block is."""
        return [place for place, blocks in self.places.items() if block in blocks]

    def longest(self, hashes: Iterable[bytes]) -> Mapping[tuple[str, str, int], int]:
        """How many of a sequence's blocks each worker has, from the first on, in whatever tier."""
        found: dict[tuple[str, str, int], int] = {}
        for n, block in enumerate(hashes):
            now = {place.worker_place for place in self.holders(block)}
            still = [worker for worker in now if found.get(worker, 0) == n]
            if not still:
                break
            found.update(dict.fromkeys(still, n + 1))
        return found

    def __len__(self) -> int:
        """Blocks, each counted once for each place that it is in."""
        return sum(map(len, self.places.values()))

    def _take_group(self, source: Source, group: Group) -> None:
        if group.kind not in KINDS:
            return  # of a later version
        place = Place(*source.place, TIERS[group.tier], group.volume)
        match group.kind:
            case Kind.STORED:
                columns = zip(cut(group.parents), cut(group.prefixes), strict=True)
                self.places.setdefault(place, {}).update(zip(cut(group.hashes), columns, strict=True))
            case Kind.REMOVED:
                blocks = self.places.get(place, {})
                for block in cut(group.hashes):
                    blocks.pop(block, None)
            case Kind.CLEARED:
                self.places.pop(place, None)
            case _:
                pass  # what is used stays; what was lost comes with the snapshot that the subscription asks for
