"""Blocks that others hold and we can read: where, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from tenuto.tokens import BlockHash, BlockKey


class BlockSet:
    """Read-only blocks by hash: (volume, slot). No leases: a reader verifies, and forgets what is not there."""

    def __init__(self) -> None:
        self._places: dict[BlockHash, tuple[str, int]] = {}

    def add(self, volume: str, entries: Iterable[tuple[int, BlockKey]]) -> None:
        """Blocks of a volume; a later place replaces an earlier one."""
        for slot, key in entries:
            self._places[key.hash] = (volume, slot)

    def find(self, block: BlockHash) -> tuple[str, int] | None:
        """Where a block is said to be."""
        return self._places.get(block)

    def forget(self, block: BlockHash) -> None:
        """It was not there."""
        self._places.pop(block, None)

    def clear(self) -> None:
        """Forget everything."""
        self._places.clear()

    def __len__(self) -> int:
        return len(self._places)
