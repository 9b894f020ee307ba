"""Blocks that others hold and we can read: where, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from tenuto.tokens import BlockHash, BlockKey


class BlockSet:
    """Read-only blocks by hash: (volume, slot). No leases: a reader verifies, and forgets what is not there."""

    def __init__(self) -> None:
        self._places: dict[BlockHash, tuple[str, int]] = {}
        self._holders: dict[tuple[str, int], BlockHash] = {}  # the other way round: a slot holds one block

    def add(self, volume: str, entries: Iterable[tuple[int, BlockKey]]) -> None:
        """Blocks of a volume; a later place replaces an earlier one, and a slot's later block its earlier one."""
        for slot, key in entries:
            place = (volume, slot)
            before = self._holders.get(place)
            if before is not None:
                self.forget(before)
            self.forget(key.hash)
            self._places[key.hash] = place
            self._holders[place] = key.hash

    def find(self, block: BlockHash) -> tuple[str, int] | None:
        """Where a block is said to be."""
        return self._places.get(block)

    def forget(self, block: BlockHash) -> None:
        """It was not there."""
        place = self._places.pop(block, None)
        if place is not None:
            del self._holders[place]

    def clear(self) -> None:
        """Forget everything."""
        self._places.clear()
        self._holders.clear()

    def __len__(self) -> int:
        return len(self._places)
