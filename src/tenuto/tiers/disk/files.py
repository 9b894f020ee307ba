"""Pool files of one folder: numbered, opened when they are first used, moved by a runtime."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk.runtime import (
    Done,
    Failed,
    File,
    IoRequest,
    Memory,
    Op,
    Reason,
    Rejected,
    Short,
    State,
    StorageRuntime,
    move,
)

_NAME = re.compile(r"pool-([0-9]{5}|[1-9][0-9]{5,})\.kv")
_GONE = (Reason.UNKNOWN, Reason.CLOSED)


def pool_file_name(number: int) -> str:
    """The name of pool file `number`."""
    return f"pool-{number:05d}.kv"


def pool_file_sizes(folder: Path) -> dict[int, int]:
    """Bytes of each pool file there is, none without the folder; 0 for what only has such a name, as a dead link."""
    sizes: dict[int, int] = {}
    if not folder.exists():
        return sizes
    for path in folder.iterdir():
        if match := _NAME.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                sizes[int(match[1])] = path.stat().st_size if path.is_file() else 0
    return sizes


def error_of(state: State, length: int) -> StoreError | None:
    """Why an item of `length` bytes that has ended is not whole; one behind its file's end is corrupt."""
    match state:
        case Done():
            return None
        case Short(n_bytes):
            return StoreError(Cause.CORRUPT, f"{n_bytes} of {length} bytes are there")
        case Failed(cause, message):
            return StoreError(cause, message)
        case Rejected(reason):
            return StoreError(Cause.MISSING if reason in _GONE else Cause.IO_ERROR, reason.value)
        case _:
            return StoreError(Cause.TIMEOUT, "still under way")


class PoolFiles:
    """Those of `folder`, a name below the runtime's root. Errors are `StoreError`."""

    def __init__(self, runtime: StorageRuntime, folder: str, *, is_writable: bool = True) -> None:
        self._runtime = runtime
        self._folder = folder
        self._is_writable = is_writable
        self._lock = threading.Lock()
        self._files: dict[int, File] = {}
        self._is_closed = False

    def sizes(self) -> dict[int, int]:
        """Bytes of each file there is."""
        found = self._runtime.sizes(self._folder)
        return {int(match[1]): found[name] for name in found if (match := _NAME.fullmatch(name))}

    def reserve(self, number: int, size_bytes: int) -> None:
        """Make file `number` have this size, with or without holes."""
        self._runtime.reserve(self._name(number), size_bytes)

    def file(self, number: int) -> File:
        """File `number`, for items of the runtime."""
        with self._lock:
            if self._is_closed:
                raise StoreError(Cause.MISSING, f"{self._folder} is closed")
            if number not in self._files:
                (self._files[number],) = self._runtime.open_batch([self._name(number)], is_writable=self._is_writable)
            return self._files[number]

    def write_from(self, number: int, offset: int, buffer: memoryview) -> None:
        """Write the whole buffer, and wait for it."""
        region = self._runtime.register_memory(Memory.of(buffer))
        try:
            request = IoRequest(Op.WRITE, self.file(number), offset, region, 0, len(buffer))
            (state,) = move(self._runtime, [request])
        finally:
            self._runtime.unregister_memory(region)
        if (error := error_of(state, len(buffer))) is not None:
            raise error

    def n_extents(self, number: int) -> int:
        """Pieces of the disk that a file lies in; 0 where that is not told."""
        return self._runtime.n_extents(self._name(number))

    def delete(self, number: int) -> None:
        """Remove a file, if it is there."""
        with self._lock:
            file = self._files.pop(number, None)
        if file is not None:
            self._runtime.close_batch([file])
        self._runtime.delete(self._name(number))

    def close(self) -> None:
        """Give all files up."""
        with self._lock:
            self._is_closed = True
            files = list(self._files.values())
            self._files.clear()
        self._runtime.close_batch(files)

    def _name(self, number: int) -> str:
        return f"{self._folder}/{pool_file_name(number)}" if self._folder else pool_file_name(number)
