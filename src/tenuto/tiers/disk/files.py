"""Pool files: the device under the disk store. Six methods, so that a fault is easy to make."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from pathlib import Path
from typing import Protocol

from tenuto.errors import Cause, StoreError, store_error

_NAME = re.compile(r"pool-([0-9]{5}|[1-9][0-9]{5,})\.kv")


def pool_file_name(number: int) -> str:
    """The name of pool file `number`."""
    return f"pool-{number:05d}.kv"


def pool_file_sizes(folder: Path) -> dict[int, int]:
    """Bytes of each pool file there is; 0 for what only has such a name, as a link that leads nowhere."""
    sizes: dict[int, int] = {}
    for path in folder.iterdir():
        if match := _NAME.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                sizes[int(match[1])] = path.stat().st_size if path.is_file() else 0
    return sizes


class PoolFiles(Protocol):
    """Numbered files. Offsets, lengths and buffers are multiples of 4 KiB. Errors are `StoreError`."""

    def sizes(self) -> dict[int, int]:
        """Bytes of each file there is."""
        ...

    def reserve(self, number: int, size_bytes: int) -> None:
        """Make file `number` have this size, with or without holes."""
        ...

    def read_into(self, number: int, offset: int, buffer: memoryview) -> int:
        """Read as much as there is, up to the buffer's length; bytes read."""
        ...

    def write_from(self, number: int, offset: int, buffer: memoryview) -> None:
        """Write the whole buffer."""
        ...

    def delete(self, number: int) -> None:
        """Remove a file, if it is there."""
        ...

    def close(self) -> None:
        """Close all files."""
        ...


class DirectFiles:
    """Files of one folder, opened with O_DIRECT where the file system allows it."""

    def __init__(self, folder: Path, *, is_writable: bool = True) -> None:
        self._folder = folder
        self._mode = os.O_RDWR if is_writable else os.O_RDONLY
        self._lock = threading.Lock()
        self._fds: dict[int, int] = {}
        self._is_closed = False
        self.is_direct = True
        """Whether the last file opened bypasses the page cache."""

    def sizes(self) -> dict[int, int]:
        """See `PoolFiles`."""
        try:
            return pool_file_sizes(self._folder)
        except OSError as error:
            raise store_error(error, f"list {self._folder}") from error

    def reserve(self, number: int, size_bytes: int) -> None:
        """See `PoolFiles`."""
        try:
            os.ftruncate(self._fd(number, os.O_CREAT), size_bytes)
        except OSError as error:
            raise store_error(error, f"create {pool_file_name(number)}") from error

    def read_into(self, number: int, offset: int, buffer: memoryview) -> int:
        """See `PoolFiles`."""
        done = 0
        try:
            fd = self._fd(number)
            while done < len(buffer):
                n = os.preadv(fd, [buffer[done:]], offset + done)
                if n == 0:
                    break
                done += n
        except FileNotFoundError as error:
            raise StoreError(Cause.MISSING, f"{pool_file_name(number)} is gone") from error
        except OSError as error:
            raise store_error(error, f"read {pool_file_name(number)}") from error
        return done

    def write_from(self, number: int, offset: int, buffer: memoryview) -> None:
        """See `PoolFiles`."""
        done = 0
        try:
            fd = self._fd(number)
            while done < len(buffer):
                done += os.pwritev(fd, [buffer[done:]], offset + done)
        except OSError as error:
            raise store_error(error, f"write {pool_file_name(number)}") from error

    def delete(self, number: int) -> None:
        """See `PoolFiles`."""
        with self._lock:
            fd = self._fds.pop(number, None)
        if fd is not None:
            os.close(fd)
        try:
            with contextlib.suppress(FileNotFoundError):
                (self._folder / pool_file_name(number)).unlink()
        except OSError as error:
            raise store_error(error, f"delete {pool_file_name(number)}") from error

    def close(self) -> None:
        """See `PoolFiles`."""
        with self._lock:
            self._is_closed = True
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def _fd(self, number: int, flags: int = 0) -> int:
        fd = self._fds.get(number)
        if fd is not None:
            return fd
        with self._lock:
            if self._is_closed:
                raise StoreError(Cause.MISSING, f"{self._folder} is closed")
            if number not in self._fds:
                self._fds[number] = self._open(self._folder / pool_file_name(number), flags)
            return self._fds[number]

    def _open(self, path: Path, flags: int) -> int:
        flags |= self._mode | os.O_CLOEXEC
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "not a plain file")  # opening a pipe would wait for ever
        try:
            fd = os.open(path, flags | os.O_DIRECT, 0o644)
            self.is_direct = True
        except OSError as error:
            if not isinstance(error, FileNotFoundError | PermissionError):
                fd = os.open(path, flags, 0o644)  # a file system without O_DIRECT
                self.is_direct = False
            else:
                raise
        return fd
