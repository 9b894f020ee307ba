"""A volume in an object store: one object an extent, listed in a manifest on the local disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tenuto.errors import Cause, StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.agent.bucket import SCHEMES, Bucket, Trash
from tenuto.tiers.disk.manifest import Manifest
from tenuto.tiers.store import OWN, Capacity, Failure, Layers, SlotIO, failures_of
from tenuto.tokens import BlockHash, BlockKey

if TYPE_CHECKING:
    from obstore.store import ObjectStore as RawStore

_THREADS = 16


class ObjectStore:
    """See `Volume`. Holds up to `capacity_bytes`; objects are named `prefix`/<place, 8 hex digits>.

    `folder` is this rank's alone, on a local disk, and the same one after a restart. An object is written whole, so
    layers are only kept at `commit`; layers are read by ranges. The objects of what is forgotten go in the background.
    """

    def __init__(self, raw: RawStore, prefix: str, folder: Path, codec: ExtentCodec, capacity_bytes: int) -> None:
        self._bucket = Bucket(raw, prefix)
        self._codec = codec
        self._n_slots = capacity_bytes // codec.layout.extent_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(Cause.IO_ERROR, f"create {folder}: {error.strerror or error}") from error
        self._manifest = Manifest(folder)
        try:
            self._manifest.delete_other_epochs(0)
            listed = self._manifest.blocks()
            too_many = [place for place, _ in listed if place >= self._n_slots]
            self._manifest.delete(too_many)
        except StoreError:
            self._manifest.close()
            raise
        self.recovered = [entry for entry in listed if entry[0] < self._n_slots]
        """(place, key) of every block that was there, oldest first."""
        self._there = {place for place, _ in self.recovered}  # what is listed: no more is read
        self._threads = ThreadPoolExecutor(_THREADS, "tenuto-objects")
        self._trash = Trash(self._bucket, self._threads)
        self._trash.add(too_many)

    @property
    def n_blocks(self) -> int:
        """See `Volume`."""
        return self._manifest.n_blocks

    @property
    def most_blocks(self) -> int:
        """See `Volume`."""
        return self._n_slots

    @property
    def file_bytes(self) -> int:
        """See `Volume`."""
        return self.n_blocks * self._codec.layout.extent_bytes

    def capacity(self) -> Capacity:
        """See `Store`."""
        return Capacity(self._n_slots, is_growing=False)

    def write(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        return self._unlist(items) or self.commit(items)

    def write_layers(self, items: Sequence[SlotIO], layers: Layers) -> list[Failure]:
        """See `Store`."""
        return self._unlist(items) if layers[0] == 0 else []

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        epoch, codec = self._manifest.epoch, self._codec

        def put(item: SlotIO) -> None:
            codec.seal(item.buffer)
            self._bucket.put(item.slot, bytes(item.buffer))

        self._trash.rescue([item.slot for item in items])
        failures = self._each(items, put)
        failed = {failure.index for failure in failures}
        good = [item for at, item in enumerate(items) if at not in failed]
        try:
            self._manifest.insert([(item.slot, item.key) for item in good], epoch)
        except StoreError as error:
            return failures_of([error] * len(items))
        self._there.update(item.slot for item in good)
        return failures

    def read(self, items: Sequence[SlotIO], volume: str = OWN, layers: Layers | None = None) -> list[Failure]:
        """See `Store`."""
        codec, layout = self._codec, self._codec.layout
        first, last = layers or (0, layout.n_layers)
        start, stop = (layout.header_bytes + at * layout.segment_bytes for at in (first, last))
        start = 0 if first == 0 else start

        def get(item: SlotIO) -> None:
            if volume != OWN or item.slot not in self._there:
                raise StoreError(Cause.MISSING, f"{f'instance {volume}' if volume else f'place {item.slot}'} is gone")
            found = self._bucket.get(item.slot, start, stop)
            if len(found) != stop - start:
                raise StoreError(Cause.CORRUPT, f"{len(found)} of {stop - start} bytes are there")
            item.buffer[start:stop] = found
            if first == 0:
                codec.verify_header(item.buffer, item.key.hash)
            codec.verify_layers(item.buffer, (first, last))

        return self._each(items, get)

    def forget(self, slots: Sequence[int]) -> None:
        """See `Store`. Does not wait for the server."""
        self._there.difference_update(slots)
        self._trash.add(slots)
        self._manifest.delete(slots)

    def reset(self, namespace: bytes, epoch: int) -> None:
        """See `Store`."""
        self._codec = ExtentCodec(self._codec.layout, namespace)
        self._manifest.epoch = epoch
        gone, self._there = self._there, set[int]()
        self._trash.add(gone)
        self._threads.submit(self._manifest.delete_other_epochs, epoch)

    def is_there(self) -> bool:
        """See `Volume`: objects are asked for when they are read."""
        return True

    def stamps(self) -> dict[int, int]:
        """See `Volume`."""
        return self._manifest.stamps()

    def attach(self, arena: memoryview) -> None:
        """See `Volume`: nothing to do."""

    def detach(self) -> None:
        """See `Volume`: nothing to undo."""

    def find(self, hashes: Iterable[BlockHash]) -> dict[BlockHash, tuple[int, BlockKey]]:
        """See `Volume`."""
        return self._manifest.find(hashes)

    def blocks_from(self, slot: int, most: int, below: int | None = None) -> Sequence[tuple[int, BlockKey]]:
        """See `Volume`."""
        return self._manifest.blocks_from(slot, most, below)

    def give_back(self, n_slots: int) -> int:  # noqa: ARG002
        """See `Volume`: an object takes nothing once it is forgotten."""
        return 0

    def close(self) -> None:
        """See `Store`."""
        self._trash.close()
        self._threads.shutdown()
        self._manifest.close()

    def clear(self) -> None:
        """Remove all objects; once it is closed. Raises `StoreError`."""
        self._bucket.clear()

    def _unlist(self, items: Sequence[SlotIO]) -> list[Failure]:
        slots = [item.slot for item in items]
        self._there.difference_update(slots)
        try:
            self._manifest.delete(slots)
        except StoreError as error:
            return failures_of([error] * len(items))
        return []

    def _each(self, items: Sequence[SlotIO], do: Callable[[SlotIO], None]) -> list[Failure]:
        """Do it to all at once; those that failed."""
        if len(items) == 1:
            errors = [_error_of(do, items[0])]
        else:
            errors = list(self._threads.map(partial(_error_of, do), items))
        return failures_of(errors)

    def __repr__(self) -> str:
        return f"<ObjectStore {self._bucket.prefix}: {self.n_blocks} of {self._n_slots}>"


def is_object_url(url: str) -> bool:
    """Whether it names an object store, and not a folder. Raises `ValueError` for what is no URL."""
    return urlsplit(url).scheme in SCHEMES


def _error_of(do: Callable[[SlotIO], None], item: SlotIO) -> StoreError | None:
    try:
        do(item)
    except StoreError as error:
        return error
    return None
