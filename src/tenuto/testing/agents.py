"""A disk tier of names in place of blocks, behind an agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenuto.advisor.agents import HOME, AgentInfo, Compacted, Moved, VolumeInfo
from tenuto.errors import ConfigError
from tenuto.pools.facts import Fact, Removed, Stored, TierKind
from tenuto.tokens import BlockHash, BlockKey


class MadeUpAgent:
    """An agent of one engine with any number of volumes. What becomes of blocks gathers until `take_facts`.

    New blocks are written home. `capacities`: places of each volume by name; files take what they once held.
    """

    def __init__(self, capacities: dict[str, int], worker: str = "worker", extent_bytes: int = 1 << 20) -> None:
        self.places: dict[BlockHash, str] = {}
        self._keys: dict[BlockHash, BlockKey] = {}
        self._capacities = dict(capacities)
        self._counts = dict.fromkeys(capacities, 0)
        self._most = dict.fromkeys(capacities, 0)
        self._urls: dict[str, tuple[str, int]] = {}
        self._draining: set[str] = set()
        self._facts: list[Fact] = []
        self._worker = worker
        self._extent_bytes = extent_bytes
        self.n_moved: dict[str, int] = dict.fromkeys(capacities, 0)
        """Blocks that were moved to each volume."""

    def write(self, keys: Iterable[BlockKey]) -> None:
        """The engine writes new blocks."""
        new = [key for key in keys if key.hash not in self.places]
        for key in new:
            self._keys[key.hash] = key
            self._put(key.hash, HOME)
        if new:
            self._facts.append(Stored(TierKind.DISK, tuple(new)))

    def take_facts(self) -> list[Fact]:
        """What became of blocks since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def stored(self) -> list[Stored]:
        """All there is, for a snapshot."""
        return [
            Stored(TierKind.DISK, tuple(self._keys[block] for block, at in self.places.items() if at == name), (), name)
            for name in self._capacities
            if self._counts[name]
        ]

    def describe(self) -> AgentInfo:
        """See `Agent`."""
        volumes = tuple(
            VolumeInfo(
                name, self._urls.get(name, (f"mem://{name}", 0))[0], n_places, self._counts[name],
                self._most[name] * self._extent_bytes, name in self._draining,
            )
            for name, n_places in self._capacities.items()
        )  # fmt: skip
        return AgentInfo(bytes(16), "a", 0, self._worker, 0, self._extent_bytes, volumes)

    def register_volume(self, name: str, url: str, capacity_bytes: int) -> None:
        """See `Agent`."""
        known = self._urls.get(name)
        if name in self._capacities:
            if known in (None, (url, capacity_bytes)):
                return
            raise ConfigError(f"volume {name} is {known[0]} with {known[1]} bytes already; unregister it first")
        self._urls[name] = (url, capacity_bytes)
        self._capacities[name] = capacity_bytes // self._extent_bytes
        self._counts[name] = self._most[name] = self.n_moved[name] = 0

    def unregister_volume(self, name: str) -> Moved:
        """See `Agent`."""
        self._draining.add(name)
        return Moved(0)

    def move(self, hashes: Sequence[BlockHash], volume: str) -> Moved:
        """See `Agent`."""
        absent = [block for block in hashes if block not in self.places]
        here = [block for block in hashes if self.places.get(block, volume) != volume]
        n_room = self._capacities[volume] - self._counts[volume]
        for block in here[:n_room]:
            before, key = self.places[block], self._keys[block]
            self._counts[before] -= 1
            self._put(block, volume)
            self.n_moved[volume] += 1
            self._facts += [Stored(TierKind.DISK, (key,), (), volume), Removed(TierKind.DISK, (key,), before)]
        return Moved(len(here[:n_room]), tuple(absent), tuple(here[n_room:]))

    def drop(self, hashes: Sequence[BlockHash]) -> int:
        """See `Agent`."""
        here = [block for block in hashes if block in self.places]
        for block in here:
            before = self.places.pop(block)
            self._counts[before] -= 1
            self._facts.append(Removed(TierKind.DISK, (self._keys.pop(block),), before))
        return len(here)

    def compact(self, volume: str) -> Compacted:
        """See `Agent`."""
        freed = self._most[volume] - self._counts[volume]
        self._most[volume] = self._counts[volume]
        return Compacted(self._counts[volume], freed * self._extent_bytes)

    def _put(self, block: BlockHash, volume: str) -> None:
        self.places[block] = volume
        self._counts[volume] += 1
        self._most[volume] = max(self._most[volume], self._counts[volume])
