"""A store in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tenuto.errors import Cause, StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.store import OWN, Capacity, Failure, SlotIO


class MemoryStore:
    """See `tenuto.tiers.store.Store`. It keeps sealed extents in a dictionary and verifies them like a disk's."""

    def __init__(self, codec: ExtentCodec, n_slots: int, *, is_growing: bool = False) -> None:
        self._lock = threading.Lock()
        self._codec = codec
        self._capacity = Capacity(n_slots, is_growing)
        self._extents: dict[int, bytearray] = {}
        self.volumes: dict[str, MemoryStore] = {}
        """Other engines' stores, by name; read only."""
        self.epoch = 0
        """That of the last reset."""

    def capacity(self) -> Capacity:
        """See `Store`."""
        return self._capacity

    def grow(self, n_slots: int, *, is_growing: bool = False) -> None:
        """Have `n_slots` slots from now on."""
        self._capacity = Capacity(n_slots, is_growing)

    def write(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        failures: list[Failure] = []
        for index, item in enumerate(items):
            try:
                self._write_one(item)
            except StoreError as error:
                failures.append(Failure(index, error.cause, str(error)))
        return failures

    def read(self, items: Sequence[SlotIO], volume: str = OWN) -> list[Failure]:
        """See `Store`."""
        store = self if volume == OWN else self.volumes.get(volume)
        failures: list[Failure] = []
        for index, item in enumerate(items):
            try:
                self._read_one(store, item)
            except StoreError as error:
                failures.append(Failure(index, error.cause, str(error)))
        return failures

    def forget(self, slots: Sequence[int]) -> None:
        """See `Store`."""
        with self._lock:
            for slot in slots:
                self._extents.pop(slot, None)

    def reset(self, namespace: bytes, epoch: int) -> None:
        """See `Store`."""
        with self._lock:
            self._extents.clear()
            self._codec = ExtentCodec(self._codec.layout, namespace)
            self.epoch = epoch

    def close(self) -> None:
        """See `Store`."""

    def flip(self, slot: int, offset: int, mask: int = 1) -> None:
        """Corrupt one byte of a stored extent."""
        with self._lock:
            self._extents[slot][offset] ^= mask

    def stored(self, slot: int) -> bytes | None:
        """The sealed extent in a slot, as it is, not verified."""
        with self._lock:
            extent = self._extents.get(slot)
            return None if extent is None else bytes(extent)

    @property
    def slots(self) -> list[int]:
        """Slots that hold something."""
        with self._lock:
            return sorted(self._extents)

    def _write_one(self, item: SlotIO) -> None:
        if not 0 <= item.slot < self._capacity.n_slots:
            raise StoreError(Cause.IO_ERROR, f"slot {item.slot} of {self._capacity.n_slots}")
        with self._lock:
            codec = self._codec
            self._extents.pop(item.slot, None)
        codec.seal(item.buffer)
        with self._lock:
            if codec is self._codec:  # else it was reset meanwhile
                self._extents[item.slot] = bytearray(item.buffer)

    def _read_one(self, store: MemoryStore | None, item: SlotIO) -> None:
        found = None if store is None else store.stored(item.slot)
        if found is None:
            raise StoreError(Cause.MISSING, f"nothing in slot {item.slot}")
        item.buffer[:] = found
        self._codec.verify(item.buffer, item.key.hash)

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._extents)} of {self._capacity.n_slots} slots used>"
