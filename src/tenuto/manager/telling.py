"""The facts that a manager tells, and on which volume of the disk tier each block lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tenuto.manager.results import Span
from tenuto.pools.facts import Cleared, Fact, Removed, Stored, TierKind, Used
from tenuto.tokens import BlockHash, BlockKey, TokenBlock


class Telling:
    """Facts in order, until they are taken. Blocks are stored on the home volume of a tier, named ""."""

    def __init__(self) -> None:
        self._facts: list[Fact] = []
        self._volumes: dict[BlockHash, str] = {}
        self.tells_uses = False
        """Whether there are facts of what is loaded: nobody hears them where nothing is published."""

    @property
    def volumes(self) -> Mapping[BlockHash, str]:
        """The volume of each disk block that is not on the home volume; changed before the fact of it is told."""
        return self._volumes

    def stored(self, tier: TierKind, keys: Sequence[BlockKey], blocks: tuple[TokenBlock, ...] = ()) -> None:
        """These can be matched now."""
        if keys:
            self._facts.append(Stored(tier, tuple(keys), blocks))

    def removed(self, tier: TierKind, keys: Sequence[BlockKey]) -> None:
        """These can't be matched any more, on whichever volume they were."""
        if tier is not TierKind.DISK or not self._volumes:
            if keys:
                self._facts.append(Removed(tier, tuple(keys)))
            return
        for volume, some in by_volume(keys, self._volumes).items():
            self._facts.append(Removed(tier, some, volume))
        for key in keys:
            self._volumes.pop(key.hash, None)

    def moved(self, blocks: Iterable[tuple[BlockKey, str]]) -> None:
        """Disk blocks lie on these volumes now."""
        groups: dict[tuple[str, str], list[BlockKey]] = {}
        for key, volume in dict(blocks).items():  # of a block that was moved more than once, where it is at last
            before = self._volumes.get(key.hash, "")
            if volume != before:
                groups.setdefault((before, volume), []).append(key)
                if volume:
                    self._volumes[key.hash] = volume
                else:
                    del self._volumes[key.hash]
        for (before, volume), keys in groups.items():  # first where it is: a reader never sees it nowhere
            self._facts.append(Stored(TierKind.DISK, tuple(keys), volume=volume))
            self._facts.append(Removed(TierKind.DISK, tuple(keys), before))

    def used(self, spans: Iterable[Span]) -> None:
        """These were asked for and found; not those of other engines."""
        for span in spans if self.tells_uses else ():
            if span.place != "peer":
                volumes = self._volumes if span.tier is TierKind.DISK else {}
                self._facts += [Used(span.tier, keys, name) for name, keys in by_volume(span.keys, volumes).items()]

    def cleared(self, tier: TierKind) -> None:
        """Nothing of a tier can be matched any more."""
        volumes: set[str] = set()
        if tier is TierKind.DISK:
            volumes = set(self._volumes.values())
            self._volumes.clear()
        self._facts += [Cleared(tier), *(Cleared(tier, volume) for volume in sorted(volumes))]

    def take(self) -> list[Fact]:
        """Facts since the last call."""
        facts, self._facts = self._facts, []
        return facts


def by_volume(keys: Iterable[BlockKey], volumes: Mapping[BlockHash, str]) -> dict[str, tuple[BlockKey, ...]]:
    """Keys apart by their volume."""
    found: dict[str, list[BlockKey]] = {}
    for key in keys:
        found.setdefault(volumes.get(key.hash, ""), []).append(key)
    return {volume: tuple(some) for volume, some in found.items()}
