"""What an agent needs of a volume: a store whose slots are places, and which finds its blocks by their hashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tenuto.tiers.store import RecoveredStore
from tenuto.tokens import BlockHash, BlockKey


class Volume(RecoveredStore, Protocol):
    """`tenuto.tiers.disk.DiskStore` and `tenuto.tiers.agent.objects.ObjectStore` are."""

    @property
    def recovered(self) -> list[tuple[int, BlockKey]]:
        """See `RecoveredStore`."""
        ...

    def is_there(self) -> bool:
        """Whether what is written is found after a restart: its folder was not removed meanwhile."""
        ...

    def stamps(self) -> dict[int, int]:
        """When the block in each place was written: more is later, on all volumes. Raises `StoreError`."""
        ...

    @property
    def n_blocks(self) -> int:
        """Blocks that are listed."""
        ...

    @property
    def most_blocks(self) -> int:
        """Blocks that there will be room for when it has grown."""
        ...

    @property
    def file_bytes(self) -> int:
        """Bytes that it takes where it lies."""
        ...

    def attach(self, arena: memoryview) -> None:
        """Most buffers will lie in this memory."""
        ...

    def detach(self) -> None:
        """They will no more."""
        ...

    def find(self, hashes: Iterable[BlockHash]) -> dict[BlockHash, tuple[int, BlockKey]]:
        """(place, key) of those of these blocks that it holds. Raises `StoreError`."""
        ...

    def blocks_from(self, slot: int, most: int, below: int | None = None) -> Sequence[tuple[int, BlockKey]]:
        """(place, key) of up to `most` blocks from `slot` up to `below`, the last first. Raises `StoreError`."""
        ...

    def give_back(self, n_slots: int) -> int:
        """Take nothing behind the first `n_slots` places any more; the bytes that are free now. Raises `StoreError`."""
        ...
