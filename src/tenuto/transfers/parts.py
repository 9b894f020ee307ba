"""Where the bytes of a worker's blocks lie, and what is told by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tenuto.errors import Cause
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.store import Failure, SlotIO, Store
from tenuto.transfers.lanes import Device
from tenuto.transfers.plan import BlockFailure, Transfer

Failures = dict[int, BlockFailure]
"""By index in a transfer."""


@dataclass(slots=True)
class Parts:
    """One for all that moves a worker's blocks, so that a reset replaces `codec` once."""

    device: Device
    arena: HostArena
    codec: ExtentCodec
    store: Store | None = None

    @property
    def n_layers(self) -> int:
        """Layers of an extent."""
        return self.codec.layout.n_layers

    def items(
        self, transfer: Transfer, slots: Sequence[int], host_slots: Sequence[int], indices: Iterable[int]
    ) -> list[SlotIO]:
        """Blocks of a transfer, in a store's slots and in host slots, both by index."""
        return [SlotIO(slots[i], transfer.keys[i], self.arena.slot(host_slots[i])) for i in indices]

    def wrong_headers(self, transfer: Transfer, slots: Sequence[int], indices: Iterable[int]) -> Failures:
        """Host slots whose header is of another block: a bug kept from becoming a wrong answer."""
        return {
            i: BlockFailure(i, Cause.CORRUPT, f"host slot {slots[i]} holds another block")
            for i in indices
            if not self.codec.is_block(self.arena.slot(slots[i]), transfer.keys[i].hash)
        }

    def needed_store(self) -> Store:
        """The store that a transfer names."""
        if self.store is None:
            raise RuntimeError("a transfer names the disk tier, which this worker does not have")
        return self.store


def at_indices(failures: Sequence[Failure], indices: Sequence[int], start: int = 0) -> Failures:
    """A store's failures, as of a transfer's blocks at `indices`, which are the store's items from `start` on."""
    mine = {indices[f.index - start]: f for f in failures if start <= f.index < start + len(indices)}
    return {index: BlockFailure(index, f.cause, f.message) for index, f in mine.items()}
