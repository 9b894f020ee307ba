"""Faults of the device under the disk store."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Sequence

from tenuto.errors import store_error
from tenuto.tiers.agent import StorageAgent
from tenuto.tiers.disk import DiskStore
from tenuto.tiers.disk.runtime.aio import Command
from tenuto.tiers.disk.runtime.contract import File, Region
from tenuto.tiers.disk.runtime.device import Device, Queue, QueuedDevice, Span
from tenuto.tiers.disk.runtime.folders import FolderRuntime
from tenuto.tiers.disk.runtime.lanes import ThreadLane
from tenuto.tiers.disk.runtime.queuelane import QueueLane


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

    def open_queue(self, n_events: int) -> FaultyQueue | None:
        """See `QueuedDevice`."""
        queue = self._files.open_queue(n_events) if isinstance(self._files, QueuedDevice) else None
        return None if queue is None else FaultyQueue(self, queue)

    def close(self) -> None:
        """See `Device`."""
        self._files.close()

    def is_well(self) -> bool:
        """Whether it does what it is asked."""
        is_whole = self.short_read_bytes is None and not self.read_s
        return is_whole and self.gate.is_set() and not (self.read_errno or self.write_errno)


class FaultyQueue:
    """The kernel's queue with the faults of `files`."""

    def __init__(self, files: FaultyFiles, queue: Queue) -> None:
        self._files = files
        self._queue = queue
        self._made: deque[tuple[int, int]] = deque()
        self._ends: set[tuple[int, int]] = set()
        """Descriptors, and where what was read short ends: who asks for the rest gets nothing."""
        self.take, self.give_back = queue.take, queue.give_back
        self.wake, self.close = queue.wake, queue.close

    def submit(self, commands: Sequence[Command]) -> int:
        """See `Queue`."""
        n = len(commands)
        if self._files.is_well():
            n = self._queue.submit(commands)
        else:
            for command in commands:
                threading.Thread(target=self._run, args=(command,), daemon=True).start()
        n_writes = sum(command.is_write for command in commands[:n])
        self._files.n_writes += n_writes
        self._files.n_reads += n - n_writes
        return n

    def wait(self, n_least: int, timeout_s: float | None) -> list[tuple[int, int]]:
        """See `Queue`."""
        found = [] if self._made else self._queue.wait(n_least, timeout_s)
        while self._made:
            found.append(self._made.popleft())
        return found

    def _run(self, command: Command) -> None:
        """In place of the kernel."""
        files = self._files
        files.gate.wait()
        if not command.is_write:
            time.sleep(files.read_s)
        if number := files.write_errno if command.is_write else files.read_errno:
            result = -number
        elif command.is_write or files.short_read_bytes is None:
            self._queue.submit([command])
            return
        else:
            buffers = [(ctypes.c_ubyte * n_bytes).from_address(address) for address, n_bytes in command.parts]
            n_there = os.preadv(command.fd, buffers, command.offset)
            result = min(n_there, files.short_read_bytes)
            if (command.fd, command.offset) in self._ends:
                result = 0
                self._ends.discard((command.fd, command.offset))
            elif result < n_there:
                self._ends.add((command.fd, command.offset + result))
        self._made.append((command.token, result))
        self._queue.wake()


def make_faulty(store: DiskStore | StorageAgent) -> FaultyFiles:
    """Put one under a store that is open, or under the home volume of one."""
    runtime = store.home.runtime if isinstance(store, StorageAgent) else store.runtime
    assert isinstance(runtime, FolderRuntime)
    files = FaultyFiles(runtime.devices[0])
    runtime.devices = (files,)
    match runtime.lanes[0]:
        case QueueLane() as lane:
            lane.queue = FaultyQueue(files, lane.queue)
        case ThreadLane() as lane:
            lane.device = files
        case _:
            raise AssertionError("a lane of a kind that is not known")
    return files


DISK_FULL, READ_ONLY, BROKEN = errno.ENOSPC, errno.EROFS, errno.EIO


def _fail(number: int, what: str) -> None:
    if number:
        raise store_error(OSError(number, os.strerror(number)), what)
