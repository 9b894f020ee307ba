"""The books of a runtime: what is open, registered and in flight; the same for all of them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk.runtime.contract import (
    Accepted,
    Caps,
    File,
    Final,
    Initial,
    IoRequest,
    Memory,
    Op,
    Reason,
    Region,
    Rejected,
    State,
)

ACCEPTED = Accepted()
_numbers = itertools.count()  # of files and regions, whichever runtime's: those of another are unknown
_CLOSE_S = 5.0
"""What hangs longer is left behind."""
_REJECTED = {reason: Rejected(reason) for reason in Reason}


@dataclass(slots=True, eq=False)
class Submission:
    """Items that were submitted together. The runtime owns all but `requests` and `initial`."""

    requests: Sequence[IoRequest]
    initial: tuple[Initial, ...]
    """What `submit` said of each."""
    states: list[State]
    n_left: int
    ended: threading.Event = field(default_factory=threading.Event)
    unexpected: BaseException | None = None
    """A bug, met on a thread of the runtime: raised to whoever asks for the states."""

    def __repr__(self) -> str:
        return f"<Submission of {len(self.requests)}: {self.n_left} under way>"


class Books:
    """Says what is accepted, and counts. Each item that was accepted is ended once."""

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self._lock = threading.Lock()
        self.registering = threading.Lock()
        """Outside of the other: books and what is below see regions come and go in the same order."""
        self._idle = threading.Condition(self._lock)
        self._n_in_flight = [0, 0]  # reads, writes
        self._files: dict[int, File] = {}
        self._regions: dict[tuple[int | None, int, int], tuple[Region, int]] = {}
        self._region_numbers: set[int] = set()
        self._is_closed = False

    def open(self, names: Sequence[str], *, is_writable: bool) -> list[File]:
        """See `StorageRuntime.open_batch`."""
        with self._lock:
            if self._is_closed:
                raise StoreError(Cause.MISSING, f"{self.caps.name}: the runtime is closed")
            files = [File(next(_numbers), name, is_writable) for name in names]
            self._files.update((file.number, file) for file in files)
            return files

    def forget(self, files: Sequence[File]) -> None:
        """They are not open any more."""
        with self._lock:
            for file in files:
                self._files.pop(file.number, None)

    def register(self, memory: Memory, attach: Callable[[Region], None]) -> Region:
        """See `StorageRuntime.register_memory`; `attach` what is new, which may raise `StoreError`."""
        with self.registering:
            region, is_new = self._enter(memory)
            if is_new:
                try:
                    attach(region)
                except StoreError:
                    self._leave(region)
                    raise
            return region

    def unregister(self, region: Region, detach: Callable[[Region], None]) -> None:
        """See `StorageRuntime.unregister_memory`; `detach` what was given up for the last time."""
        with self.registering:
            if self._leave(region):
                detach(region)

    def _enter(self, memory: Memory) -> tuple[Region, bool]:
        """The region, and whether it is new. Raises `StoreError`."""
        if memory.device is not None and not self.caps.has_device_memory:
            raise StoreError(Cause.IO_ERROR, f"{self.caps.name}: moves host memory only, not a GPU's")
        with self._lock:
            if self._is_closed:
                raise StoreError(Cause.MISSING, f"{self.caps.name}: the runtime is closed")
            key = (memory.device, memory.address, memory.n_bytes)
            region, n_times = self._regions.get(key, (None, 0))
            is_new = region is None
            if region is None:
                region = Region(next(_numbers), memory, memory.view() if memory.device is None else None)
                self._region_numbers.add(region.number)
            self._regions[key] = (region, n_times + 1)
            return region, is_new

    def _leave(self, region: Region) -> bool:
        """Whether it was given up for the last time."""
        key = (region.memory.device, region.memory.address, region.memory.n_bytes)
        with self._lock:
            known, n_times = self._regions.get(key, (None, 0))
            if known is None or known.number != region.number:
                return False
            if n_times > 1:
                self._regions[key] = (known, n_times - 1)
                return False
            del self._regions[key]
            self._region_numbers.discard(region.number)
            return True

    def regions(self) -> list[Region]:
        """All that are registered."""
        with self._lock:
            return [region for region, _ in self._regions.values()]

    def admit(self, requests: Sequence[IoRequest], stream: object) -> Submission:
        """Accept, in order, what may begin."""
        with self._lock:
            initial: tuple[Initial, ...] = tuple(self._judge(request, stream) for request in requests)
        n_accepted = sum(1 for state in initial if state is ACCEPTED)
        submission = Submission(requests, initial, list(initial), n_accepted)
        if not n_accepted:
            submission.ended.set()
        return submission

    def end(self, submission: Submission, index: int, state: Final, unexpected: BaseException | None = None) -> None:
        """An accepted item has come to its end."""
        with self._lock:
            submission.states[index] = state
            submission.unexpected = unexpected or submission.unexpected
            submission.n_left -= 1
            self._n_in_flight[submission.requests[index].op is Op.WRITE] -= 1
            is_last = not submission.n_left
            if self._is_closed and not any(self._n_in_flight):
                self._idle.notify_all()
        if is_last:
            submission.ended.set()

    def states(self, submission: Submission) -> tuple[State, ...]:
        """See `StorageRuntime.poll`."""
        if submission.unexpected is not None:
            raise submission.unexpected
        with self._lock:
            return tuple(submission.states)

    def wait(self, submission: Submission, timeout_s: float | None) -> tuple[State, ...]:
        """See `StorageRuntime.wait`."""
        if not submission.ended.wait(timeout_s):
            left, n = submission.n_left, len(submission.requests)
            raise StoreError(Cause.TIMEOUT, f"{self.caps.name}: {left} of {n} items are under way after {timeout_s} s")
        return self.states(submission)

    def close(self) -> bool:
        """Accept nothing more, and wait for what is under way, for a while; whether it was open till now."""
        with self._lock:
            was_open, self._is_closed = not self._is_closed, True
            self._idle.wait_for(lambda: not any(self._n_in_flight), _CLOSE_S)
            return was_open

    def _judge(self, request: IoRequest, stream: object) -> Initial:
        reason = self._fault(request, stream)
        way = request.op is Op.WRITE
        if reason is None and self._n_in_flight[way] >= self.caps.max_in_flight:
            reason = Reason.FULL
        if reason is not None:
            return _REJECTED[reason]
        self._n_in_flight[way] += 1
        return ACCEPTED

    def _fault(self, request: IoRequest, stream: object) -> Reason | None:
        caps, region = self.caps, request.region
        if self._is_closed:
            return Reason.CLOSED
        if stream is not None and not caps.has_device_execution:
            return Reason.STREAM
        if request.file.number not in self._files or region.number not in self._region_numbers:
            return Reason.UNKNOWN
        if request.op is Op.WRITE and not request.file.is_writable:
            return Reason.READ_ONLY
        if not 0 < request.length <= caps.max_io_bytes:
            return Reason.SIZE
        if (request.offset | request.length) % caps.io_alignment:
            return Reason.ALIGNMENT
        if (region.memory.address + request.memory_offset) % caps.memory_alignment:
            return Reason.ALIGNMENT
        if min(request.offset, request.memory_offset) < 0:
            return Reason.OUTSIDE
        return Reason.OUTSIDE if request.memory_offset + request.length > region.memory.n_bytes else None
