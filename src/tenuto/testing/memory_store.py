"""A store in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tenuto.errors import Cause, StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import ExtentLayout
from tenuto.tiers.store import OWN, Capacity, Failure, Layers, SlotIO


class MemoryStore:
    """See `tenuto.tiers.store.Store`. It keeps sealed extents in a dictionary and verifies them like a disk's."""

    def __init__(self, codec: ExtentCodec, n_slots: int, *, is_growing: bool = False) -> None:
        self._lock = threading.Lock()
        self._codec = codec
        self._capacity = Capacity(n_slots, is_growing)
        self._extents: dict[int, bytearray] = {}
        self._parts: dict[int, bytearray] = {}  # written layer by layer, not committed yet
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

        def write(item: SlotIO) -> None:
            self._write_layers(item, (0, self._codec.layout.n_layers))
            self._commit(item)

        return _each(items, write)

    def write_layers(self, items: Sequence[SlotIO], layers: Layers) -> list[Failure]:
        """See `Store`."""
        return _each(items, lambda item: self._write_layers(item, layers))

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        return _each(items, self._commit)

    def read(self, items: Sequence[SlotIO], volume: str = OWN, layers: Layers | None = None) -> list[Failure]:
        """See `Store`."""
        store = self if volume == OWN else self.volumes.get(volume)

        def read(item: SlotIO) -> None:
            found = None if store is None else store.stored(item.slot)
            if found is None:
                raise StoreError(Cause.MISSING, f"nothing in slot {item.slot}")
            n_layers = self._codec.layout.n_layers
            first, last = layers or (0, n_layers)
            start, stop = _span(self._codec.layout, (first, last))
            start = start if first else 0  # the header comes with the first layer
            item.buffer[start:stop] = found[start:stop]
            if not first:
                self._codec.verify_header(item.buffer, item.key.hash)
            self._codec.verify_layers(item.buffer, (first, last))

        return _each(items, read)

    def forget(self, slots: Sequence[int]) -> None:
        """See `Store`."""
        with self._lock:
            for slot in slots:
                self._extents.pop(slot, None)

    def reset(self, namespace: bytes, epoch: int) -> None:
        """See `Store`."""
        with self._lock:
            self._extents.clear()
            self._parts.clear()
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

    def _write_layers(self, item: SlotIO, layers: Layers) -> None:
        if not 0 <= item.slot < self._capacity.n_slots:
            raise StoreError(Cause.IO_ERROR, f"slot {item.slot} of {self._capacity.n_slots}")
        start, stop = _span(self._codec.layout, layers)
        with self._lock:
            if layers[0] == 0:
                self._extents.pop(item.slot, None)
                self._parts[item.slot] = bytearray(self._codec.layout.extent_bytes)
            if (part := self._parts.get(item.slot)) is not None:  # else it was reset meanwhile
                part[start:stop] = item.buffer[start:stop]

    def _commit(self, item: SlotIO) -> None:
        with self._lock:
            codec, part = self._codec, self._parts.pop(item.slot, None)
        if part is None:
            return
        codec.seal(item.buffer)
        part[: codec.layout.header_bytes] = item.buffer[: codec.layout.header_bytes]
        with self._lock:
            if codec is self._codec:
                self._extents[item.slot] = part

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._extents)} of {self._capacity.n_slots} slots used>"


def _span(layout: ExtentLayout, layers: Layers) -> tuple[int, int]:
    start, stop = (layout.header_bytes + at * layout.segment_bytes for at in layers)
    return start, stop


def _each(items: Sequence[SlotIO], do: Callable[[SlotIO], None]) -> list[Failure]:
    failures: list[Failure] = []
    for index, item in enumerate(items):
        try:
            do(item)
        except StoreError as error:
            failures.append(Failure(index, error.cause, str(error)))
    return failures
