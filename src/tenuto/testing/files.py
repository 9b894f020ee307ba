"""Faults of the device under the disk store."""

from __future__ import annotations

import errno
import os
import threading
import time

from tenuto.errors import store_error
from tenuto.tiers.disk.files import PoolFiles


class FaultyFiles:
    """Pool files that fail when told to.

    `read_errno` and `write_errno`, while not 0, are the errors of each read, and of each write, reservation and delete;
    `short_read_bytes`, while not None, is all that a read gives; `gate`, while cleared, holds reads and writes back;
    each read takes `read_s` seconds more.
    """

    def __init__(self, files: PoolFiles) -> None:
        self._files = files
        self.read_errno = 0
        self.write_errno = 0
        self.short_read_bytes: int | None = None
        self.read_s = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.n_reads = 0
        self.n_writes = 0

    def sizes(self) -> dict[int, int]:
        """See `PoolFiles`."""
        return self._files.sizes()

    def reserve(self, number: int, size_bytes: int) -> None:
        """See `PoolFiles`."""
        _fail(self.write_errno, "create")
        self._files.reserve(number, size_bytes)

    def read_into(self, number: int, offset: int, buffer: memoryview) -> int:
        """See `PoolFiles`."""
        self.n_reads += 1
        self.gate.wait()
        time.sleep(self.read_s)
        _fail(self.read_errno, "read")
        n = self._files.read_into(number, offset, buffer)
        return n if self.short_read_bytes is None else min(n, self.short_read_bytes)

    def write_from(self, number: int, offset: int, buffer: memoryview) -> None:
        """See `PoolFiles`."""
        self.n_writes += 1
        self.gate.wait()
        _fail(self.write_errno, "write")
        self._files.write_from(number, offset, buffer)

    def delete(self, number: int) -> None:
        """See `PoolFiles`."""
        self._files.delete(number)

    def close(self) -> None:
        """See `PoolFiles`."""
        self._files.close()


DISK_FULL, READ_ONLY, BROKEN = errno.ENOSPC, errno.EROFS, errno.EIO


def _fail(number: int, what: str) -> None:
    if number:
        raise store_error(OSError(number, os.strerror(number)), what)
