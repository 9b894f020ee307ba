"""The runtime of disks whose calls block: threads of its own for each disk, files striped over them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk.runtime.books import ACCEPTED, Books, Submission
from tenuto.tiers.disk.runtime.contract import (
    Caps,
    Done,
    Failed,
    File,
    Final,
    IoRequest,
    Memory,
    Op,
    Region,
    Short,
    State,
)
from tenuto.tiers.disk.runtime.device import Device, Span
from tenuto.tiers.disk.runtime.striping import Piece, Striping
from tenuto.tiers.disk.runtime.threads import IoThreads, Job

_JOB_BYTES = 1 << 20
"""Smaller pieces are read several by a thread before it asks for more."""


class ThreadedRuntime:
    """See `StorageRuntime`. Reads go before writes that wait for the same disk."""

    def __init__(self, caps: Caps, devices: Sequence[Device], striping: Striping, n_threads: int) -> None:
        self._books = Books(caps)
        self.devices = tuple(devices)
        """The disks, in the order of the stripes. A test may put others in their place, that pass on to them."""
        self._striping = striping
        self._n_threads = n_threads
        self._lanes: list[IoThreads] = []
        with ExitStack() as undo:  # where the system gives no further thread
            for number, device in enumerate(devices):
                undo.callback(device.close)
                self._lanes.append(IoThreads(n_threads, f"tenuto-io-{number}"))
                undo.callback(self._lanes[-1].close)
            undo.pop_all()

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
        urgent: list[list[tuple[_Item, Piece]]] = [[] for _ in self._lanes]
        normal: list[list[Job]] = [[] for _ in self._lanes]
        for index, (request, state) in enumerate(zip(requests, submission.initial, strict=True)):
            if state is not ACCEPTED:
                continue
            item = _Item(self._books, submission, index, request)
            rotation = self._striping.rotation(request.file.name) if len(self._lanes) > 1 else 0
            pieces = self._striping.cut(request.offset, request.length, rotation)
            item.n_left = len(pieces)
            if request.op is Op.READ:
                for piece in pieces:
                    urgent[piece.disk].append((item, piece))
            else:
                first = pieces[0]
                normal[first.disk].append(partial(self._write, item, pieces))
        for lane, device, reads, writes in zip(self._lanes, self.devices, urgent, normal, strict=True):
            if reads:
                lane.put(_jobs(device, reads, self._n_threads), is_urgent=True)
            if writes:
                lane.put(writes, is_urgent=False)
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
            for lane in self._lanes:
                lane.close()
            for region in self._books.regions():
                _detach(self.devices, region)
            for device in self.devices:
                device.close()

    def _write(self, item: _Item, pieces: Sequence[Piece]) -> None:
        """The item's work, then all disks at once, this thread's own among them."""
        if not item.prepare(len(pieces)):
            return
        for piece in pieces[1:]:
            self._lanes[piece.disk].put([partial(item.write, self.devices[piece.disk], piece)], is_urgent=False)
        item.write(self.devices[pieces[0].disk], pieces[0])

    def __repr__(self) -> str:
        return f"<ThreadedRuntime {self.caps.name}: {len(self.devices)} disks>"


def _jobs(device: Device, reads: Sequence[tuple[_Item, Piece]], n_threads: int) -> list[Job]:
    """Some for each thread, each of a few small pieces in a row."""
    largest = max(sum(n_bytes for _, n_bytes in piece.parts) for _, piece in reads)
    n = max(1, min(_JOB_BYTES // largest, len(reads) // (2 * n_threads)))
    return [partial(_read, device, reads[at : at + n]) for at in range(0, len(reads), n)]


def _read(device: Device, reads: Sequence[tuple[_Item, Piece]]) -> None:
    for item, piece in reads:
        item.read(device, piece)


def _attach(devices: Sequence[Device], region: Region) -> None:
    for device in devices:
        device.attach(region)


def _detach(devices: Sequence[Device], region: Region) -> None:
    for device in devices:
        device.detach(region)


class _Item:
    """One accepted request, on its way in one piece per disk."""

    __slots__ = ("_books", "_error", "_index", "_lock", "_n_bytes", "_request", "_submission", "_unexpected", "n_left")

    def __init__(self, books: Books, submission: Submission, index: int, request: IoRequest) -> None:
        self._books = books
        self._submission = submission
        self._index = index
        self._request = request
        self._lock = threading.Lock()
        self._n_bytes = 0
        self._error: StoreError | None = None
        self._unexpected: BaseException | None = None
        self.n_left = 1

    def prepare(self, n_pieces: int) -> bool:
        """Do the work of a write; when it fails, so has the item."""
        is_good = self._try(self._work)
        if not is_good:
            self._ended(n_pieces)
        return is_good

    def read(self, device: Device, piece: Piece) -> None:
        """Move one piece into memory; the last does the work."""
        self._try(partial(self._read, device, piece))
        self._ended(1)

    def write(self, device: Device, piece: Piece) -> None:
        """Move one piece out of memory."""
        self._try(partial(self._write, device, piece))
        self._ended(1)

    def _read(self, device: Device, piece: Piece) -> None:
        n_bytes = device.read(self._request.file, piece.offset, self._spans(piece))
        with self._lock:
            self._n_bytes += n_bytes

    def _write(self, device: Device, piece: Piece) -> None:
        device.write(self._request.file, piece.offset, self._spans(piece))

    def _spans(self, piece: Piece) -> list[Span]:
        base = self._request.memory_offset
        return [Span(self._request.region, base + offset, n_bytes) for offset, n_bytes in piece.parts]

    def _work(self) -> None:
        if self._request.work is not None:
            self._request.work()

    def _try(self, step: Job) -> bool:
        try:
            step()
        except StoreError as error:
            self._error = error
        except BaseException as error:  # noqa: BLE001 - border of a thread: raised to whoever asks for the states
            self._unexpected = error
        else:
            return True
        return False

    def _ended(self, n_pieces: int) -> None:
        with self._lock:
            self.n_left -= n_pieces
            if self.n_left:
                return
        request = self._request
        is_good = self._error is None and self._unexpected is None
        if is_good and request.op is Op.READ and self._n_bytes == request.length:
            self._try(self._work)
        self._books.end(self._submission, self._index, self._final(), self._unexpected)

    def _final(self) -> Final:
        if self._error is not None:
            return Failed(self._error.cause, str(self._error))
        if self._unexpected is not None:
            return Failed(Cause.IO_ERROR, f"{type(self._unexpected).__name__}: {self._unexpected}")
        if self._request.op is Op.READ and self._n_bytes < self._request.length:
            return Short(self._n_bytes)
        return Done(self._request.length)
