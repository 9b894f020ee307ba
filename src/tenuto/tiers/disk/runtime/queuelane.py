"""The way to one disk by the kernel's queue: one call for many pieces, few threads that see how they end.

Threads whose calls block take Python's interpreter lock back after each call, and with it an engine's time; see
`docs/decisions/0016-kernel-aio.md`.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from tenuto.errors import Cause, StoreError, store_error
from tenuto.tiers.disk.runtime.aio import MOST_PARTS, WOKEN, Command
from tenuto.tiers.disk.runtime.contract import File
from tenuto.tiers.disk.runtime.descriptors import Descriptor
from tenuto.tiers.disk.runtime.device import Queue
from tenuto.tiers.disk.runtime.items import Item
from tenuto.tiers.disk.runtime.lanes import Move
from tenuto.tiers.disk.runtime.striping import Piece
from tenuto.tiers.disk.runtime.threads import PATIENCE, IoThreads, Job

N_REAPERS = 2
"""Threads that check what has come, unless something else is said."""
N_EVENTS = 128
"""Room of a queue: more than what is under way at most, reads, writes and calls to wake."""

_LEAST_READS, _MOST_READS, _MOST_READ_BYTES, _MOST_WRITES = 4, 64, 8 << 20, 16
"""Under way at once. Of more bytes a disk ends all at about the same time, and then waits until they are checked."""
_GROUP, _GROUP_S = 4, 0.0005
"""So many ends are waited for, so long, that they come together. The last ones come at once."""
_AGAIN_S = 0.001
_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)
_JOIN_S = 1.0
_PAGE_BYTES = 4096


@dataclass(slots=True, eq=False)
class _Flight:
    """A piece on its way. Left of it are `parts` of memory, (address, bytes) each, from `offset` of the file on."""

    item: Item
    file: File
    is_write: bool
    offset: int
    parts: list[tuple[int, int]]
    n_bytes: int
    n_moved: int = 0
    descriptor: Descriptor | None = None

    def go_on(self, n_bytes: int) -> bool:
        """So many have moved; whether there is more to do: no direct I/O goes on behind a part of a page."""
        self.n_moved += n_bytes
        if self.n_moved == self.n_bytes or not n_bytes or n_bytes % _PAGE_BYTES:
            return False
        self.offset += n_bytes
        while n_bytes >= self.parts[0][1]:
            n_bytes -= self.parts.pop(0)[1]
        address, n_left = self.parts[0]
        self.parts[0] = (address + n_bytes, n_left - n_bytes)
        return True


class QueueLane:
    """See `Lane`. Reads are queued by whoever asks, writes by a thread of its own: a file that grows may hold it.

    A read waits, until it is counted as one of those that may be under way; a write waits in its thread. What is
    counted gets its file and a number, is queued, and ends by that number; whoever sees it end counts and queues what
    waits. The lock is for what waits, the counts and the end, and is not held while flights are queued or waited for.
    Flights by their numbers are put in and looked up without it: a number has one user at a time.
    """

    is_queued = True

    def __init__(self, queue: Queue, n_threads: int, name: str) -> None:
        self.queue = queue
        """A test may put another in its place, that passes on to it."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        """Told when a write may begin."""
        self._waiting: deque[_Flight] = deque()
        self._flights: dict[int, _Flight] = {}
        self._tokens = itertools.count(WOKEN + 1)
        self._n_reads = self._n_read_bytes = self._n_writes = 0
        self._n_passed = 0
        """Reads that have begun since the last write did."""
        self._is_closed = self._is_ending = False
        self._has_writer = True
        self._reapers: list[threading.Thread] = []
        self._n_reapers = 0
        with ExitStack() as undo:  # where the system gives no further thread
            undo.callback(queue.close)
            self._writer = IoThreads(1, f"{name}-write", self._writer_ended)
            undo.pop_all()
            undo.callback(self.close)
            for number in range(n_threads):
                thread = threading.Thread(target=self._reap, name=f"{name}-{number}", daemon=True)
                thread.start()
                self._reapers.append(thread)
                self._n_reapers += 1
            undo.pop_all()

    def read(self, moves: Sequence[Move]) -> None:
        """See `Lane`."""
        flights = [_flight(item, piece, is_write=False) for item, piece in moves]
        with self._lock:
            is_open = not self._is_ending
            if is_open:
                self._waiting.extend(flights)
            begun = self._next()
        self._begin(begun)
        if not is_open:
            _refuse(self.queue, flights)

    def put(self, jobs: Sequence[Job]) -> None:
        """See `Lane`."""
        self._writer.put(jobs, is_urgent=False)

    def write(self, item: Item, piece: Piece) -> None:
        """See `Lane`."""
        with self._lock:
            self._room.wait_for(lambda: self._n_writes < _MOST_WRITES and self._is_writes_turn())
            self._n_passed = 0
            is_open = not self._is_ending
            self._n_writes += is_open
        flights = [_flight(item, piece, is_write=True)]
        if is_open:
            self._begin(flights)
        else:
            _refuse(self.queue, flights)

    def close(self) -> None:
        """See `Lane`."""
        self._writer.close()
        with self._lock:
            self._is_closed = True
            self._end_if_idle()
            if not self._n_reapers:
                self.queue.close()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._reapers:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _next(self) -> list[_Flight]:
        """Reads that may begin, counted; the lock is held."""
        begun: list[_Flight] = []
        while self._waiting and (
            self._n_reads < _LEAST_READS or (self._n_reads < _MOST_READS and self._n_read_bytes < _MOST_READ_BYTES)
        ):
            begun.append(self._waiting.popleft())
            self._n_reads += 1
            self._n_read_bytes += begun[-1].n_bytes
        self._n_passed += len(begun)
        if self._is_writes_turn():
            self._room.notify()
        return begun

    def _is_writes_turn(self) -> bool:
        """The lock is held."""
        return not self._waiting or self._n_passed >= PATIENCE

    def _uncount(self, flight: _Flight) -> None:
        """The lock is held."""
        if flight.is_write:
            self._n_writes -= 1
        else:
            self._n_reads -= 1
            self._n_read_bytes -= flight.n_bytes

    def _begin(self, flights: list[_Flight]) -> None:
        """Queue what is counted; in place of what fails, go on with what waits."""
        while flights:
            failed: list[tuple[_Flight, BaseException]] = []
            commands, is_full = self._commands(flights, failed)
            while commands:
                try:
                    del commands[: self.queue.submit(commands)]
                except BlockingIOError:
                    is_full = self._put_back([self._flights[command.token] for command in commands], commands)
                    if is_full:
                        break
                    time.sleep(_AGAIN_S)
                except BaseException as error:  # noqa: BLE001 - border of a thread
                    failed.append((self._flights.pop(commands[0].token), error))
                    del commands[0]
            with self._lock:
                for flight, _ in failed:
                    self._uncount(flight)
                flights = [] if is_full and self._flights else self._next()  # else whoever sees one of them end
                self._end_if_idle()
            for flight, error in failed:
                self._end(flight, error)

    def _commands(
        self, flights: Sequence[_Flight], failed: list[tuple[_Flight, BaseException]]
    ) -> tuple[list[Command], bool]:
        """A command for each flight whose file opens; and whether no more can be open, and the rest was put back.

        What can't be opened goes to `failed`. Flights get their numbers here, since their ends may come before the call
        returns that queues them.
        """
        commands: list[Command] = []
        for index, flight in enumerate(flights):
            try:
                flight.descriptor = flight.descriptor or self.queue.take(flight.file)
            except BaseException as error:  # noqa: BLE001 - border of a thread
                if isinstance(error, OSError) and error.errno in _NO_MORE_FILES and self._put_back(flights[index:]):
                    return commands, True
                failed.append((flight, error))
                continue
            token, parts = next(self._tokens), flight.parts[:MOST_PARTS]
            commands.append(Command(token, flight.is_write, flight.descriptor.fd, flight.offset, parts))
            self._flights[token] = flight
        return commands, False

    def _put_back(self, flights: Sequence[_Flight], commands: Sequence[Command] = ()) -> bool:
        """There is room for no more: let reads wait again, for whoever sees another end; whether they do.

        Writes don't, nor do reads where nothing else is under way: nobody would begin them. `commands` has their
        numbers, if they have any: given up too.
        """
        with self._lock:
            for command in commands:
                del self._flights[command.token]
            if flights[0].is_write or not self._flights:
                self._flights.update(zip((command.token for command in commands), flights, strict=False))
                return False
            for flight in flights:
                self._uncount(flight)
            self._waiting.extendleft(reversed(flights))
            return True

    def _reap(self) -> None:
        """Take in ends until the lane has ended; the last thread gives the queue back."""
        n_least, timeout_s = 1, None
        while not self._is_ending:
            if found := self.queue.wait(n_least, timeout_s):
                self._ended(found)
                n_least = _GROUP if len(self._flights) > _GROUP else 1
            else:
                n_least = 1
            timeout_s = None if n_least == 1 else _GROUP_S
        with self._lock:
            self._n_reapers -= 1
            if self._n_reapers:
                _wake(self.queue)
            else:
                self.queue.close()

    def _ended(self, events: Sequence[tuple[int, int]]) -> None:
        """Go on with what moved in part, begin what waits in place of what has ended, and then tell the items."""
        ended: list[tuple[_Flight, int]] = []
        rest: list[_Flight] = []
        found = [(token, result) for token, result in events if token != WOKEN]
        for token, result in found:
            flight = self._flights[token]
            if result < 0 or not flight.go_on(result):
                _let_go(self.queue, flight)  # before others look for room: few files may be open
                ended.append((flight, result))
            else:
                rest.append(flight)
        with self._lock:
            for token, _ in found:
                del self._flights[token]
            for flight, _ in ended:
                self._uncount(flight)
            begun = [*(flight for flight in rest if not flight.is_write), *self._next()]
            self._end_if_idle()
        self._begin(begun)
        self._begin([flight for flight in rest if flight.is_write])
        for flight, result in ended:
            self._end(flight, None if result >= 0 else OSError(-result, os.strerror(-result)))

    def _end(self, flight: _Flight, error: BaseException | None) -> None:
        """Tell the item how its piece ended."""
        _let_go(self.queue, flight)
        if error is not None:
            flight.item.failed(_mapped(flight, error))
        elif flight.is_write and flight.n_moved < flight.n_bytes:
            moved = f"{flight.n_moved} of {flight.n_bytes} bytes were taken"
            flight.item.failed(StoreError(Cause.IO_ERROR, f"write {flight.file.name}: {moved}"))
        else:
            flight.item.arrived(flight.n_moved)

    def _end_if_idle(self) -> None:
        """The lock is held. What hangs keeps its queue, and the threads that wait for its end."""
        is_busy = self._n_reads or self._n_writes or self._waiting or self._has_writer
        if self._is_closed and not self._is_ending and not is_busy:
            self._is_ending = True
            _wake(self.queue)

    def _writer_ended(self) -> None:
        """By the thread for writes, when it has no job any more."""
        with self._lock:
            self._has_writer = False
            self._end_if_idle()


def _refuse(queue: Queue, flights: Sequence[_Flight]) -> None:
    """They came after the end, from a disk of the stripe that hung till now."""
    for flight in flights:
        _let_go(queue, flight)
        flight.item.failed(StoreError(Cause.MISSING, f"{flight.file.name}: its folder is closed"))


def _wake(queue: Queue) -> None:
    with suppress(BlockingIOError):  # as many events are there as may be: who waits is awake
        queue.wake()


def _let_go(queue: Queue, flight: _Flight) -> None:
    """Give its descriptor back, once."""
    taken, flight.descriptor = flight.descriptor, None
    if taken is not None:
        queue.give_back(taken)


def _flight(item: Item, piece: Piece, *, is_write: bool) -> _Flight:
    request = item.request
    base = request.region.memory.address + request.memory_offset
    parts = [(base + at, n_bytes) for at, n_bytes in piece.parts]
    n_bytes = sum(n_bytes for _, n_bytes in parts)
    return _Flight(item, request.file, is_write, piece.offset, parts, n_bytes)


def _mapped(flight: _Flight, error: BaseException) -> BaseException:
    if isinstance(error, FileNotFoundError):
        return StoreError(Cause.MISSING, f"{flight.file.name} is gone")
    if isinstance(error, OSError):
        return store_error(error, f"{'write' if flight.is_write else 'read'} {flight.file.name}")
    return error
