"""A volume in an object store, by `obstore`: one object an extent, listed in a manifest on the local disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.disk.manifest import Manifest
from tenuto.tiers.store import OWN, Capacity, Failure, Layers, SlotIO
from tenuto.tokens import BlockHash, BlockKey

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Bucket

SCHEMES = ("s3", "gs", "az", "azure", "http", "https")
_THREADS = 16


def open_bucket(url: str) -> Bucket:
    """The object store at an URL; its login comes from where its own tools take it (AWS_ACCESS_KEY_ID and so on).

    Raises `ConfigError` for one that can't be: a wrong URL, or obstore is not installed.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise ConfigError(f"volume {url} needs obstore, which is not installed; pip install obstore") from None
    try:
        return from_url(url)
    except (BaseError, ValueError) as error:
        raise ConfigError(f"volume {url}: {_line(error)}; write it as s3://BUCKET/PREFIX") from None


class ObjectStore:
    """See `Volume`. Holds up to `capacity_bytes`; objects are named `prefix`/<place, 8 hex digits>.

    `folder` is this rank's alone, on a local disk, and the same one after a restart. An object is written whole, so
    layers are only kept at `commit`; layers are read by ranges.
    """

    def __init__(self, bucket: Bucket, prefix: str, folder: Path, codec: ExtentCodec, capacity_bytes: int) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._codec = codec
        self._n_slots = capacity_bytes // codec.layout.extent_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._manifest = Manifest(folder)
        try:
            self._manifest.delete_other_epochs(0)
            self.recovered = [entry for entry in self._manifest.blocks() if entry[0] < self._n_slots]
            """(place, key) of every block that was there, oldest first."""
        except StoreError:
            self._manifest.close()
            raise
        self._threads = ThreadPoolExecutor(_THREADS, "tenuto-objects")

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
        return self._unlist(items) or self._each(items, self._delete, "delete") if layers[0] == 0 else []

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        epoch, codec = self._manifest.epoch, self._codec

        def put(item: SlotIO) -> None:
            codec.seal(item.buffer)
            self._bucket.put(self._name(item.slot), bytes(item.buffer))

        failures = self._each(items, put, "write")
        failed = {failure.index for failure in failures}
        try:
            self._manifest.insert([(item.slot, item.key) for at, item in enumerate(items) if at not in failed], epoch)
        except StoreError as error:
            return _all_failed(items, error)
        return failures

    def read(self, items: Sequence[SlotIO], volume: str = OWN, layers: Layers | None = None) -> list[Failure]:
        """See `Store`."""
        codec, layout = self._codec, self._codec.layout
        first, last = layers or (0, layout.n_layers)
        start, stop = (layout.header_bytes + at * layout.segment_bytes for at in (first, last))
        start = 0 if first == 0 else start

        def get(item: SlotIO) -> None:
            if volume != OWN:
                raise StoreError(Cause.MISSING, f"instance {volume} is gone")
            found = self._bucket.get_range(self._name(item.slot), start=start, end=stop)
            if len(found) != stop - start:
                raise StoreError(Cause.CORRUPT, f"{len(found)} of {stop - start} bytes are there")
            item.buffer[start:stop] = memoryview(found)
            if first == 0:
                codec.verify_header(item.buffer, item.key.hash)
            codec.verify_layers(item.buffer, (first, last))

        return self._each(items, get, "read")

    def forget(self, slots: Sequence[int]) -> None:
        """See `Store`. Their objects go too, as far as that can be done now."""
        self._manifest.delete(slots)
        self._each([SlotIO(slot, _NOBODY, memoryview(b"")) for slot in slots], self._delete, "delete")

    def reset(self, namespace: bytes, epoch: int) -> None:
        """See `Store`. Objects stay until their places are used again."""
        self._codec = ExtentCodec(self._codec.layout, namespace)
        self._manifest.epoch = epoch
        self._threads.submit(self._manifest.delete_other_epochs, epoch)

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
        self._threads.shutdown()
        self._manifest.close()

    def _name(self, place: int) -> str:
        return f"{self._prefix}/{place:08x}"

    def _delete(self, item: SlotIO) -> None:
        with suppress(FileNotFoundError):
            self._bucket.delete(self._name(item.slot))

    def _unlist(self, items: Sequence[SlotIO]) -> list[Failure]:
        try:
            self._manifest.delete([item.slot for item in items])
        except StoreError as error:
            return _all_failed(items, error)
        return []

    def _each(self, items: Sequence[SlotIO], do: Callable[[SlotIO], None], verb: str) -> list[Failure]:
        """Do it to all at once; those that failed."""
        if len(items) == 1:
            errors = [_error_of(do, verb, items[0])]
        else:
            errors = list(self._threads.map(partial(_error_of, do, verb), items))
        return [Failure(at, error.cause, str(error)) for at, error in enumerate(errors) if error is not None]

    def __repr__(self) -> str:
        return f"<ObjectStore {self._prefix}: {self.n_blocks} of {self._n_slots}>"


_NOBODY = BlockKey(BlockHash(bytes(16)), BlockHash(bytes(16)), BlockHash(bytes(16)))


def is_object_url(url: str) -> bool:
    """Whether it names an object store, and not a folder."""
    return urlsplit(url).scheme in SCHEMES


def _error_of(do: Callable[[SlotIO], None], verb: str, item: SlotIO) -> StoreError | None:
    from obstore.exceptions import BaseError

    try:
        do(item)
    except StoreError as error:
        return error
    except FileNotFoundError as error:
        return StoreError(Cause.MISSING, f"{verb} an object: {_line(error)}")
    except (BaseError, OSError) as error:
        return StoreError(Cause.IO_ERROR, f"{verb} an object: {_line(error)}")
    return None


def _all_failed(items: Sequence[SlotIO], error: StoreError) -> list[Failure]:
    return [Failure(index, error.cause, str(error)) for index in range(len(items))]


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
