"""Files of a folder, past the page cache where the file system allows it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tenuto.errors import Cause, StoreError, store_error
from tenuto.tiers.disk.runtime.aio import Aio
from tenuto.tiers.disk.runtime.contract import File, Region
from tenuto.tiers.disk.runtime.descriptors import Descriptors
from tenuto.tiers.disk.runtime.device import Span
from tenuto.tiers.disk.runtime.extents import count_extents

logger = logging.getLogger(__name__)

_PAGE_BYTES = 4096
_NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR)
_MOST_BUFFERS = 1024
"""IOV_MAX: buffers of one call."""


class DirectFiles:
    """See `Device`. O_DIRECT, or, said once, the page cache."""

    def __init__(self, root: Path, max_open_files: int = 512) -> None:
        self.root = root
        self.is_direct = True
        """Whether the last file that was opened goes past the page cache."""
        self.descriptors = Descriptors(self._open, max_open_files)
        self._is_told = False

    def sizes(self, folder: str) -> dict[str, int]:
        """See `Device`."""
        found: dict[str, int] = {}
        try:
            for entry in os.scandir(self.root / folder):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise store_error(error, f"list {self.root / folder}") from error
        return found

    def reserve(self, name: str, n_bytes: int) -> None:
        """See `Device`."""
        path = self.root / name
        try:
            self.root.stat()  # one that is gone, as a disk's mount may be, is not made anew on another disk
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(fd, n_bytes)
            finally:
                os.close(fd)
        except OSError as error:
            raise store_error(error, f"create {name}") from error

    def delete(self, name: str) -> None:
        """See `Device`."""
        try:
            with contextlib.suppress(FileNotFoundError):
                (self.root / name).unlink()
        except OSError as error:
            raise store_error(error, f"delete {name}") from error

    def n_extents(self, name: str) -> int:
        """See `Device`."""
        try:
            return count_extents(self.root / name)
        except OSError as error:
            raise store_error(error, f"look at {name}") from error

    def read(self, file: File, offset: int, spans: Sequence[Span]) -> int:
        """See `Device`."""
        done = 0
        try:
            with self.descriptors.use(file) as fd:
                for buffers in _calls(spans):
                    wanted = sum(map(len, buffers))
                    n = _move(os.preadv, fd, buffers, offset + done)
                    done += n
                    if n < wanted:
                        break
        except FileNotFoundError as error:
            raise StoreError(Cause.MISSING, f"{file.name} is gone") from error
        except OSError as error:
            raise store_error(error, f"read {file.name}") from error
        return done

    def write(self, file: File, offset: int, spans: Sequence[Span]) -> None:
        """See `Device`."""
        try:
            with self.descriptors.use(file) as fd:
                for buffers in _calls(spans):
                    wanted = sum(map(len, buffers))
                    n = _move(os.pwritev, fd, buffers, offset)
                    if n < wanted:
                        raise StoreError(Cause.IO_ERROR, f"write {file.name}: {n} of {wanted} bytes were taken")
                    offset += n
        except FileNotFoundError as error:
            raise StoreError(Cause.MISSING, f"{file.name} is gone") from error
        except OSError as error:
            raise store_error(error, f"write {file.name}") from error

    def forget(self, file: File) -> None:
        """See `Device`."""
        self.descriptors.forget(file)

    def attach(self, region: Region) -> None:
        """See `Device`."""

    def detach(self, region: Region) -> None:
        """See `Device`."""

    def open_queue(self, n_events: int) -> FileQueue | None:
        """See `QueuedDevice`. None where calls would wait, as through the page cache, or the kernel refuses."""
        if not takes_direct_io(self.root):
            return None
        try:
            return FileQueue(self.descriptors, n_events)
        except OSError as error:
            logger.info("tenuto: %s: no kernel AIO (%s); threads move its bytes", self.root, error.strerror)
            return None

    def close(self) -> None:
        """See `Device`."""
        self.descriptors.close()

    def _open(self, file: File) -> int:
        path = self.root / file.name
        fd, self.is_direct = open_direct(path, is_writable=file.is_writable)
        if not self.is_direct and not self._is_told:
            self._is_told = True
            logger.warning("tenuto: %s: no direct I/O on this file system; blocks go through the page cache", self.root)
        return fd

    def __repr__(self) -> str:
        return f"<DirectFiles {self.root}>"


class FileQueue(Aio):
    """See `Queue`."""

    def __init__(self, descriptors: Descriptors, n_events: int) -> None:
        super().__init__(n_events)
        self.take = descriptors.take
        self.give_back = descriptors.give_back


def takes_direct_io(folder: Path) -> bool:
    """Whether files of a folder can be read and written past the page cache: tried with one that has no name.

    Where a file system has none of these, as some of networks and containers, with a `probe_file`.
    """
    try:
        os.close(os.open(folder, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC | os.O_TMPFILE, 0o600))
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            return False
    else:
        return True
    try:
        with probe_file(folder) as fd:
            return _is_direct(fd)
    except StoreError:
        return False


@contextmanager
def probe_file(folder: Path) -> Generator[int]:
    """A descriptor of a new file in `folder`, opened as those of pool files are; the file is gone afterwards.

    Raises `StoreError` where the folder takes no file.
    """
    files, name = DirectFiles(folder), f".probe-{uuid.uuid4().hex}"
    try:
        files.reserve(name, _PAGE_BYTES)
        try:
            fd, _ = open_direct(folder / name, is_writable=True)
        except OSError as error:
            raise store_error(error, f"open {name}") from error
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        files.delete(name)


def open_direct(path: Path, *, is_writable: bool) -> tuple[int, bool]:
    """A descriptor of a plain file, and whether it goes past the page cache. Raises `OSError`."""
    flags = os.O_CLOEXEC | (os.O_RDWR if is_writable else os.O_RDONLY)
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a plain file")  # opening a pipe would wait for ever
    try:
        return os.open(path, flags | os.O_DIRECT), True
    except OSError as error:
        if error.errno not in _NO_DIRECT:
            raise
    return os.open(path, flags), False


def _calls(spans: Sequence[Span]) -> list[list[memoryview]]:
    """The buffers of each call."""
    views = [span.view() for span in spans]
    return [views[at : at + _MOST_BUFFERS] for at in range(0, len(views), _MOST_BUFFERS)]


def _move(call: Callable[[int, list[memoryview], int], int], fd: int, buffers: list[memoryview], offset: int) -> int:
    """Call until all has moved, or nothing more does; bytes moved."""
    left, done = list(buffers), 0
    while left:
        n = call(fd, left, offset + done)
        done += n
        if n == 0 or (n % _PAGE_BYTES and _is_direct(fd)):
            break  # no direct I/O goes on from such an offset: the file ends there, or the disk is full
        while left and n >= len(left[0]):
            n -= len(left.pop(0))
        if n:
            left[0] = left[0][n:]
    return done


def _is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)
