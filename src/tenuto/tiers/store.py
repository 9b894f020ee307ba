"""What every store below host memory can do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tenuto.errors import Cause, StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.tokens import BlockHash, BlockKey

OWN = ""
"""The volume this process writes; other volumes belong to other engines and are read only."""


@dataclass(frozen=True, slots=True)
class SlotIO:
    """One extent to move between a store's slot and a page-aligned buffer of the extent's size."""

    slot: int
    key: BlockKey
    buffer: memoryview


@dataclass(frozen=True, slots=True)
class Failure:
    """Item `index` of a batch failed; all items without a failure are done."""

    index: int
    cause: Cause
    message: str


def failures_of(errors: Iterable[StoreError | None]) -> list[Failure]:
    """Of a batch's items, by the error of each that has one."""
    return [Failure(index, error.cause, str(error)) for index, error in enumerate(errors) if error is not None]


@dataclass(frozen=True, slots=True)
class Capacity:
    """`n_slots` slots can be used now; `is_growing` when more may come.

    `n_blocks`: how many of them may hold a block at once, where that is less.
    """

    n_slots: int
    is_growing: bool
    n_blocks: int | None = None

    @property
    def n_usable(self) -> int:
        """Blocks that there is room for."""
        return self.n_slots if self.n_blocks is None else min(self.n_slots, self.n_blocks)


@dataclass(slots=True)
class StoreNews:
    """What became of blocks without the manager's doing: (block, volume) of those that lie elsewhere now; lost ones."""

    moved: list[tuple[BlockKey, str]] = field(default_factory=list[tuple[BlockKey, str]])
    lost: list[BlockHash] = field(default_factory=list[BlockHash])

    def add(self, later: StoreNews) -> None:
        """What became of them after that."""
        self.moved += later.moved
        self.lost += later.lost

    def __bool__(self) -> bool:
        return bool(self.moved or self.lost)


Layers = tuple[int, int]
"""A half-open range of an extent's layers, counted from its first."""


class Store(Protocol):
    """Extents by slot number. Thread-safe; what moves bytes blocks until the whole batch has ended."""

    def capacity(self) -> Capacity:
        """Slots that can be written now."""
        ...

    def write(self, items: Sequence[SlotIO]) -> list[Failure]:
        """Seal and store whole extents; what a slot held before is forgotten first."""
        ...

    def write_layers(self, items: Sequence[SlotIO], layers: Layers) -> list[Failure]:
        """Store some layers of extents that nobody is given before `commit`.

        The first layer comes first: what the slot held before is forgotten then.
        """
        ...

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """Seal and store the headers of extents whose layers were all written, from the same buffers; list them."""
        ...

    def read(self, items: Sequence[SlotIO], volume: str = OWN, layers: Layers | None = None) -> list[Failure]:
        """Fill buffers with whole verified extents; the buffer of a failed item is undefined.

        With `layers`, fill these alone; the header comes with the first of them, and stands in the buffer when later
        ones are read.
        """
        ...

    def forget(self, slots: Sequence[int]) -> None:
        """Drop what these own slots hold. Raises `StoreError`."""
        ...

    def reset(self, namespace: bytes, epoch: int) -> None:
        """Forget everything; store for another namespace digest from now on. Does not wait for the device."""
        ...

    def close(self) -> None:
        """Stop threads and give up locks. Not while a `read` or `write` runs."""
        ...


class RecoveredStore(Store, Protocol):
    """A store that remembers."""

    @property
    def recovered(self) -> Sequence[tuple[int, BlockKey]]:
        """(slot, key) of every block that it held when it was opened, oldest first."""
        ...


class OpenStore(Protocol):
    """How a class of others that is named in `tiers.disk.store` is called, once for each rank.

    Such a store is this engine's alone: other engines of the node do not read it. Nor does the node's bound hold it:
    each keeps `capacity_bytes` by itself, while what lies in its folder is counted as used when others ask for room;
    the folder of an engine that has ended may go then. What it reads is verified by us once more.
    `tenuto.testing.store_contract` tests such a store.
    """

    def __call__(self, folder: Path, codec: ExtentCodec, capacity_bytes: int) -> RecoveredStore:
        """Open it. `folder` is this rank's alone, and the same one after a restart; `capacity_bytes` the setting's.

        The arguments are given by position. Raises `StoreError` or `OSError` for a reason that may pass: the tier is
        off then until the next start.
        """
        ...


OPEN_STORE_ARGUMENTS = ("folder", "codec", "capacity_bytes")
"""Those of `OpenStore`, by position."""
