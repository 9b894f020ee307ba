"""The runtime of folders: a way of its own to each disk, by threads or the kernel's queue; files striped over them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from tenuto.tiers.disk.runtime.books import ACCEPTED, Books, Submission
from tenuto.tiers.disk.runtime.contract import Caps, File, IoRequest, Memory, Op, Region, State
from tenuto.tiers.disk.runtime.device import Device, Queue, QueuedDevice
from tenuto.tiers.disk.runtime.items import Item
from tenuto.tiers.disk.runtime.lanes import N_THREADS, Lane, Move, ThreadLane
from tenuto.tiers.disk.runtime.queuelane import N_EVENTS, N_REAPERS, QueueLane
from tenuto.tiers.disk.runtime.striping import Piece, Striping
from tenuto.tiers.disk.runtime.threads import Job


class FolderRuntime:
    """See `StorageRuntime`. Reads go before writes that wait for the same disk."""

    def __init__(
        self,
        caps: Caps,
        devices: Sequence[Device],
        striping: Striping,
        n_threads: int | None = None,
        *,
        is_queued: bool = True,
    ) -> None:
        """`n_threads` of each disk, None: as many as its way needs. `is_queued`: use the kernel's queue where it is."""
        self.devices = tuple(devices)
        """The disks, in the order of the stripes. A test may put others in their place, that pass on to them."""
        self._striping = striping
        self.lanes: list[Lane] = []
        """The way to each disk."""
        with ExitStack() as undo:  # where the system gives no further thread
            for number, device in enumerate(devices):
                undo.callback(device.close)
                queue = device.open_queue(N_EVENTS) if is_queued and isinstance(device, QueuedDevice) else None
                self.lanes.append(_lane(device, queue, n_threads, f"tenuto-io-{number}"))
                undo.callback(self.lanes[-1].close)
            undo.pop_all()
        self._books = Books(replace(caps, is_queued=all(lane.is_queued for lane in self.lanes)))

    @property
    def caps(self) -> Caps:
        """See `StorageRuntime`."""
        return self._books.caps

    def sizes(self, folder: str) -> dict[str, int]:
        """See `StorageRuntime`."""
        found: dict[str, int] = {}
        for device in self.devices:
            for name, n_bytes in device.sizes(folder).items():
                found[name] = found.get(name, 0) + n_bytes
        return found

    def reserve(self, name: str, n_bytes: int) -> None:
        """See `StorageRuntime`."""
        sizes = self._striping.part_bytes(n_bytes, self._striping.rotation(name))
        for device, part_bytes in zip(self.devices, sizes, strict=True):
            device.reserve(name, part_bytes)

    def delete(self, name: str) -> None:
        """See `StorageRuntime`."""
        for device in self.devices:
            device.delete(name)

    def n_extents(self, name: str) -> int:
        """See `StorageRuntime`."""
        return max(device.n_extents(name) for device in self.devices)

    def open_batch(self, names: Sequence[str], *, is_writable: bool = True) -> list[File]:
        """See `StorageRuntime`."""
        return self._books.open(names, is_writable=is_writable)

    def close_batch(self, files: Sequence[File]) -> None:
        """See `StorageRuntime`."""
        self._books.forget(files)
        for device in self.devices:
            for file in files:
                device.forget(file)

    def register_memory(self, memory: Memory) -> Region:
        """See `StorageRuntime`."""
        return self._books.register(memory, partial(_attach, self.devices))

    def unregister_memory(self, region: Region) -> None:
        """See `StorageRuntime`."""
        self._books.unregister(region, partial(_detach, self.devices))

    def submit(self, requests: Sequence[IoRequest], stream: object = None) -> Submission:
        """See `StorageRuntime`."""
        submission = self._books.admit(requests, stream)
        reads: list[list[Move]] = [[] for _ in self.lanes]
        writes: list[list[Job]] = [[] for _ in self.lanes]
        for index, (request, state) in enumerate(zip(requests, submission.initial, strict=True)):
            if state is not ACCEPTED:
                continue
            item = Item(self._books, submission, index, request)
            rotation = self._striping.rotation(request.file.name) if len(self.lanes) > 1 else 0
            pieces = self._striping.cut(request.offset, request.length, rotation)
            item.n_left = len(pieces)
            if request.op is Op.READ:
                for piece in pieces:
                    reads[piece.disk].append((item, piece))
            else:
                writes[pieces[0].disk].append(partial(self._write, item, pieces))
        for lane, moves, jobs in zip(self.lanes, reads, writes, strict=True):
            if moves:
                lane.read(moves)
            if jobs:
                lane.put(jobs)
        return submission

    def poll(self, submission: Submission) -> tuple[State, ...]:
        """See `StorageRuntime`."""
        return self._books.states(submission)

    def wait(self, submission: Submission, timeout_s: float | None = None) -> tuple[State, ...]:
        """See `StorageRuntime`."""
        return self._books.wait(submission, timeout_s)

    def close(self) -> None:
        """See `StorageRuntime`."""
        if self._books.close():
            for lane in self.lanes:
                lane.close()
            for region in self._books.regions():
                _detach(self.devices, region)
            for device in self.devices:
                device.close()

    def _write(self, item: Item, pieces: Sequence[Piece]) -> None:
        """The item's work, then all disks at once, this thread's own among them."""
        if not item.prepare(len(pieces)):
            return
        for piece in pieces[1:]:
            self.lanes[piece.disk].put([partial(self.lanes[piece.disk].write, item, piece)])
        self.lanes[pieces[0].disk].write(item, pieces[0])

    def __repr__(self) -> str:
        return f"<FolderRuntime {self.caps.name}: {len(self.devices)} disks>"


def _lane(device: Device, queue: Queue | None, n_threads: int | None, name: str) -> Lane:
    if queue is None:
        return ThreadLane(device, n_threads or N_THREADS, name)
    return QueueLane(queue, n_threads or N_REAPERS, name)


def _attach(devices: Sequence[Device], region: Region) -> None:
    for device in devices:
        device.attach(region)


def _detach(devices: Sequence[Device], region: Region) -> None:
    for device in devices:
        device.detach(region)
