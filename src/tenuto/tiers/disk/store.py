"""The disk store: extents in the slots of pool files, listed in the manifest after they are whole."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tenuto.errors import Cause, StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.disk.buffers import Buffers
from tenuto.tiers.disk.files import PoolFiles, error_of
from tenuto.tiers.disk.growth import Growth
from tenuto.tiers.disk.instance import Claim, is_network
from tenuto.tiers.disk.manifest import Manifest
from tenuto.tiers.disk.peers import Peers
from tenuto.tiers.disk.quota import Quota
from tenuto.tiers.disk.runtime import (
    File,
    IoRequest,
    Op,
    RuntimeSettings,
    StorageRuntime,
    move,
    run_devices,
)
from tenuto.tiers.disk.runtime.direct import DirectFiles
from tenuto.tiers.disk.slotmap import SlotMap
from tenuto.tiers.store import OWN, Capacity, Failure, Layers, SlotIO, failures_of
from tenuto.tokens import FORMAT_VERSION, BlockHash, BlockKey

logger = logging.getLogger(__name__)

OpenRuntime = Callable[[tuple[Path, ...], RuntimeSettings], StorageRuntime]
"""From the folder that pool files lie below, or those that they are striped over."""

_Check = Callable[[memoryview, BlockHash], None]
"""Takes an extent and the hash that it must have."""

_JOIN_S = 5.0
_LEAST_OPEN_FILES = 64  # of each folder of a stripe


def open_files(folders: tuple[Path, ...], settings: RuntimeSettings) -> StorageRuntime:
    """Direct I/O by the kernel's queue, or by threads: of a plain folder, or striped."""
    most = max(_LEAST_OPEN_FILES, settings.max_open_files // len(folders))
    devices = [DirectFiles(folder.absolute(), most) for folder in folders]
    return run_devices("striped" if len(devices) > 1 else "file", devices, settings)


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """`file_bytes` is the largest size of a pool file; `n_threads` for each folder: see `RuntimeSettings`."""

    quota: Quota
    file_bytes: int = 1 << 30
    n_threads: int | None = None


class DiskStore:
    """See `tenuto.tiers.store.Store`. Owns the claimed folder until `close`.

    Opening recovers; see `Growth.recover`. Raises `StoreError` when the folder can't be opened now; the claim's lock
    is its caller's then.
    """

    def __init__(
        self,
        claim: Claim,
        codec: ExtentCodec,
        settings: DiskSettings,
        rank: int = 0,
        runtime: OpenRuntime = open_files,
    ) -> None:
        self.claim = claim
        """The folder that is written, which this process holds."""
        self._codec = codec
        self._extent_bytes = codec.layout.extent_bytes
        home = claim.instance.parent
        with ExitStack() as undo:
            self.runtime = runtime(claim.homes, RuntimeSettings(n_threads=settings.n_threads))
            undo.callback(self.runtime.close)
            self.buffers = Buffers(self.runtime)
            """The memory of what is read and written."""
            self._files = PoolFiles(self.runtime, claim.folder.relative_to(home).as_posix())
            meta = _meta(codec)
            self._manifest, listed = _open_manifest(claim.folder, meta)
            undo.callback(self._manifest.close)
            self._growth = Growth(claim, self._files, self._manifest, settings.quota, self._extent_bytes)
            self._growth.recover(settings.file_bytes)
            n_slots = self._growth.slots.n_slots
            self.recovered: list[tuple[int, BlockKey]] = [entry for entry in listed if entry[0] < n_slots]
            """(slot, key) of every block found when the store was opened, oldest first."""
            self.peers = Peers(self.runtime, home, claim.instance.name, rank, meta)
            self._cleaning: list[threading.Thread] = []
            self._growth.used(self._manifest.n_blocks)
            self._growth.start()
            undo.pop_all()

    def capacity(self) -> Capacity:
        """See `Store`."""
        return self._growth.capacity()

    @property
    def slots_per_file(self) -> int:
        """Slots of the pool files that are added."""
        return self._growth.slots_per_file

    def write(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`. Order: unlist the slots, write the extents, list them."""
        codec, epoch = self._codec, self._manifest.epoch
        try:
            self._manifest.delete([item.slot for item in items])
        except StoreError as error:
            return failures_of([error] * len(items))
        return self._list(items, self._move(Op.WRITE, items, OWN, self._span(None), _sealing(codec)), epoch)

    def write_layers(self, items: Sequence[SlotIO], layers: Layers) -> list[Failure]:
        """See `Store`."""
        start, stop = self._span(layers)
        if layers[0] == 0:
            start = self._codec.layout.header_bytes
            try:
                self._manifest.delete([item.slot for item in items])
            except StoreError as error:
                return failures_of([error] * len(items))
        return failures_of(self._move(Op.WRITE, items, OWN, (start, stop), None))

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        codec, epoch = self._codec, self._manifest.epoch
        errors = self._move(Op.WRITE, items, OWN, (0, codec.layout.header_bytes), _sealing(codec))
        return self._list(items, errors, epoch)

    def read(self, items: Sequence[SlotIO], volume: str = OWN, layers: Layers | None = None) -> list[Failure]:
        """See `Store`."""
        codec = self._codec

        def verify(buffer: memoryview, expected: BlockHash) -> None:
            if layers is None or layers[0] == 0:
                codec.verify_header(buffer, expected)
            codec.verify_layers(buffer, layers or (0, codec.layout.n_layers))

        return failures_of(self._move(Op.READ, items, volume, self._span(layers), verify))

    def forget(self, slots: Sequence[int]) -> None:
        """See `Store`."""
        self._manifest.delete(slots)
        self._growth.used(self._manifest.n_blocks)

    def attach(self, arena: memoryview) -> None:
        """Most buffers will lie in this memory, until `detach`."""
        self.buffers.attach(arena)

    def detach(self) -> None:
        """They will no more. Not while one of them is in use."""
        self.buffers.detach()

    def is_there(self) -> bool:
        """Whether its folder is still where it was."""
        return self.claim.is_there()

    def stamps(self) -> dict[int, int]:
        """When the block in each slot was listed: more is later, in all folders. Raises `StoreError`."""
        return self._manifest.stamps()

    @property
    def n_blocks(self) -> int:
        """Blocks that are listed."""
        return self._manifest.n_blocks

    @property
    def most_blocks(self) -> int:
        """Blocks that there will be room for when it has grown."""
        return self._growth.most_slots

    @property
    def file_bytes(self) -> int:
        """Bytes of the pool files."""
        return self._growth.slots.n_slots * self._extent_bytes

    def find(self, hashes: Iterable[BlockHash]) -> dict[BlockHash, tuple[int, BlockKey]]:
        """(slot, key) of those of these blocks that are listed. Raises `StoreError`."""
        return self._manifest.find(hashes)

    def blocks_from(self, slot: int, most: int, below: int | None = None) -> list[tuple[int, BlockKey]]:
        """(slot, key) of up to `most` listed blocks from `slot` up to `below`, the last first. Raises `StoreError`."""
        return self._manifest.blocks_from(slot, most, below)

    def give_back(self, n_slots: int) -> int:
        """Cut the pool files off behind the first `n_slots` slots; the bytes that are free now. Raises `StoreError`.

        Nothing may be listed there, nor be read or written meanwhile. Slots come back when more of them are used.
        """
        return self._growth.give_back(n_slots)

    def reset(self, namespace: bytes, epoch: int) -> None:
        """See `Store`."""
        self._codec = ExtentCodec(self._codec.layout, namespace)
        self._manifest.epoch = epoch
        cleaner = threading.Thread(target=self._clean, args=(epoch,), name="tenuto-clean", daemon=True)
        try:
            cleaner.start()
        except RuntimeError:  # no thread to be had: the next start drops those rows
            return
        self._cleaning.append(cleaner)

    def close(self) -> None:
        """See `Store`."""
        with ExitStack() as closing:  # the last first; a step that fails leaves none out
            closing.callback(os.close, self.claim.lock_fd)
            closing.callback(self._manifest.close)
            closing.callback(self.runtime.close)
            closing.callback(self.buffers.detach)
            closing.callback(self._files.close)
            closing.callback(self.peers.close)
            for cleaner in self._cleaning:
                closing.callback(cleaner.join, _JOIN_S)
            closing.callback(self._growth.close)

    def __repr__(self) -> str:
        return f"<DiskStore {self.claim.folder}: {self.capacity().n_slots} slots>"

    def _span(self, layers: Layers | None) -> tuple[int, int]:
        """Bytes [start, stop) of an extent; the first layer's begin with the header."""
        layout = self._codec.layout
        layers = layers or (0, layout.n_layers)
        start, stop = (layout.header_bytes + at * layout.segment_bytes for at in layers)
        return (0 if layers[0] == 0 else start), stop

    def _list(self, items: Sequence[SlotIO], errors: Sequence[StoreError | None], epoch: int) -> list[Failure]:
        """List what was written without an error."""
        good = [item for item, error in zip(items, errors, strict=True) if error is None]
        try:
            self._manifest.insert([(item.slot, item.key) for item in good], epoch)
        except StoreError as error:
            return failures_of([error] * len(items))
        self._growth.used(self._manifest.n_blocks)
        return failures_of(errors)

    def _move(
        self, op: Op, items: Sequence[SlotIO], volume: str, span: tuple[int, int], work: _Check | None
    ) -> list[StoreError | None]:
        """Move bytes [start, stop) of each; the error of each that has one. `work`: before a write, after a read."""
        errors: list[StoreError | None] = [None] * len(items)
        requests: dict[int, IoRequest] = {}
        start, stop = span
        try:
            for index, item in enumerate(items):
                try:
                    file, offset = self._place(volume, item.slot)
                    region, at = self.buffers.use(item.buffer)
                except StoreError as error:
                    errors[index] = error
                    continue
                on_thread = None if work is None else partial(work, item.buffer, item.key.hash)
                requests[index] = IoRequest(op, file, offset + start, region, at + start, stop - start, on_thread)
            states = move(self.runtime, list(requests.values()))
        finally:
            for request in requests.values():
                self.buffers.release(request.region)
        for index, state in zip(requests, states, strict=True):
            errors[index] = error_of(state, stop - start)
        return errors if volume == OWN else [_of_peer(volume, error) for error in errors]

    def _place(self, volume: str, slot: int) -> tuple[File, int]:
        """Where a slot begins. Raises `StoreError`."""
        if volume == OWN:
            files, (number, index) = self._files, self._growth.slots.place(slot)
        else:
            files, number, index = self.peers.place(volume, slot)
        return files.file(number), index * self._extent_bytes

    def _clean(self, epoch: int) -> None:
        try:
            self._manifest.delete_other_epochs(epoch)
        except StoreError as error:
            logger.warning("%s", error)


def _sealing(codec: ExtentCodec) -> _Check:
    return lambda buffer, _: codec.seal(buffer)


def _of_peer(volume: str, error: StoreError | None) -> StoreError | None:
    """A slot's owner may reuse it at any time; whether it is damaged is for the owner to find."""
    if error is None or error.cause is not Cause.CORRUPT:
        return error
    return StoreError(Cause.MISSING, f"instance {volume}: {error}")


def _meta(codec: ExtentCodec) -> dict[str, str]:
    """What a rank folder is for; other values mean other bytes."""
    layout = codec.layout
    return {
        "format": str(FORMAT_VERSION),
        "namespace": codec.namespace.hex(),
        "extent_bytes": str(layout.extent_bytes),
        "layers": f"{layout.layers[0]}:{layout.layers[1]}",
        "heads": f"{layout.heads[0]}:{layout.heads[1]}",
    }


def _open_manifest(folder: Path, meta: dict[str, str]) -> tuple[Manifest, list[tuple[int, BlockKey]]]:
    """Open it for `meta`, with its blocks; one that is damaged is replaced, and its blocks are lost with it.

    Raises `StoreError` when it can't be read for another reason, which may pass: nothing is lost then.
    """
    try:
        return _checked(Manifest(folder, is_network=is_network(folder)), meta)
    except StoreError as error:
        if error.cause is not Cause.CORRUPT:
            raise
        logger.warning("tenuto: %s is damaged (%s): the disk tier starts empty", folder, error)
    for path in folder.glob("manifest.sqlite*"):
        path.unlink()
    return _checked(Manifest(folder, is_network=is_network(folder)), meta)


def _checked(manifest: Manifest, meta: dict[str, str]) -> tuple[Manifest, list[tuple[int, BlockKey]]]:
    """Read all of it, once; what was made for something else is emptied."""
    try:
        if manifest.meta() != meta:
            manifest.restart(meta)
        manifest.delete_other_epochs(0)
        SlotMap(manifest.files())
        return manifest, manifest.blocks()
    except StoreError:
        manifest.close()
        raise
