"""Faults of the device under the disk store."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence

from tenuto.errors import store_error
from tenuto.tiers.disk import DiskStore
from tenuto.tiers.disk.runtime.contract import File, Region
from tenuto.tiers.disk.runtime.device import Device, Span
from tenuto.tiers.disk.runtime.threaded import ThreadedRuntime


class FaultyFiles:
    """A device that fails when told to.

    `read_errno` and `write_errno`, while not 0, are the errors of each read, and of each write, reservation and delete;
    `short_read_bytes`, while not None, is all that a read gives; `gate`, while cleared, holds reads and writes back;
    each read takes `read_s` seconds more.
    """

    def __init__(self, files: Device) -> None:
        self._files = files
        self.read_errno = 0
        self.write_errno = 0
        self.short_read_bytes: int | None = None
        self.read_s = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.n_reads = 0
        self.n_writes = 0

    def sizes(self, folder: str) -> dict[str, int]:
        """See `Device`."""
        return self._files.sizes(folder)

    def reserve(self, name: str, n_bytes: int) -> None:
        """See `Device`."""
        _fail(self.write_errno, "create")
        self._files.reserve(name, n_bytes)

    def n_extents(self, name: str) -> int:
        """See `Device`."""
        return self._files.n_extents(name)

    def read(self, file: File, offset: int, spans: Sequence[Span]) -> int:
        """See `Device`."""
        self.n_reads += 1
        self.gate.wait()
        time.sleep(self.read_s)
        _fail(self.read_errno, "read")
        n = self._files.read(file, offset, spans)
        return n if self.short_read_bytes is None else min(n, self.short_read_bytes)

    def write(self, file: File, offset: int, spans: Sequence[Span]) -> None:
        """See `Device`."""
        self.n_writes += 1
        self.gate.wait()
        _fail(self.write_errno, "write")
        self._files.write(file, offset, spans)

    def delete(self, name: str) -> None:
        """See `Device`."""
        self._files.delete(name)

    def forget(self, file: File) -> None:
        """See `Device`."""
        self._files.forget(file)

    def attach(self, region: Region) -> None:
        """See `Device`."""
        self._files.attach(region)

    def detach(self, region: Region) -> None:
        """See `Device`."""
        self._files.detach(region)

    def close(self) -> None:
        """See `Device`."""
        self._files.close()


def make_faulty(store: DiskStore) -> FaultyFiles:
    """Put one under a store that is open."""
    runtime = store.runtime
    assert isinstance(runtime, ThreadedRuntime)
    files = FaultyFiles(runtime.devices[0])
    runtime.devices = (files,)
    return files


DISK_FULL, READ_ONLY, BROKEN = errno.ENOSPC, errno.EROFS, errno.EIO


def _fail(number: int, what: str) -> None:
    if number:
        raise store_error(OSError(number, os.strerror(number)), what)
