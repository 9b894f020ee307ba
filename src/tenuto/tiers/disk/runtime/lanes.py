"""What moves the pieces of one disk: threads whose calls block, or (`queuelane`) the kernel's queue."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from tenuto.tiers.disk.runtime.device import Device
from tenuto.tiers.disk.runtime.items import Item
from tenuto.tiers.disk.runtime.striping import Piece
from tenuto.tiers.disk.runtime.threads import IoThreads, Job

Move = tuple[Item, Piece]

N_THREADS = 16
"""Of a disk, unless something else is said: so many reads it has at once."""
_JOB_BYTES = 1 << 20
"""Smaller pieces are read several by a thread before it asks for more."""


class Lane(Protocol):
    """The way to one disk. Thread-safe. Reads go before writes that wait, within bounds (`PATIENCE`)."""

    is_queued: bool
    """Whether pieces wait in the kernel, and not in threads."""

    def read(self, moves: Sequence[Move]) -> None:
        """Read pieces; each tells its item how it ended."""
        ...

    def put(self, jobs: Sequence[Job]) -> None:
        """Run jobs on a thread for writes, in order; what they call `write` of."""
        ...

    def write(self, item: Item, piece: Piece) -> None:
        """Write a piece of an item that is prepared; it tells its item how it ended. For jobs: may wait for room."""
        ...

    def close(self) -> None:
        """End the threads, behind what is queued; what hangs is left behind."""
        ...


class ThreadLane:
    """See `Lane`. Each thread moves one piece at a time."""

    is_queued = False

    def __init__(self, device: Device, n_threads: int, name: str) -> None:
        self.device = device
        """A test may put another in its place, that passes on to it."""
        self._n_threads = n_threads
        self._threads = IoThreads(n_threads, name)

    def read(self, moves: Sequence[Move]) -> None:
        """See `Lane`."""
        self._threads.put(_jobs(self.device, moves, self._n_threads), is_urgent=True)

    def put(self, jobs: Sequence[Job]) -> None:
        """See `Lane`."""
        self._threads.put(jobs, is_urgent=False)

    def write(self, item: Item, piece: Piece) -> None:
        """See `Lane`."""
        item.write(self.device, piece)

    def close(self) -> None:
        """See `Lane`."""
        self._threads.close()


def _jobs(device: Device, moves: Sequence[Move], n_threads: int) -> list[Job]:
    """Some for each thread, each of a few small pieces in a row."""
    largest = max(sum(n_bytes for _, n_bytes in piece.parts) for _, piece in moves)
    n = max(1, min(_JOB_BYTES // largest, len(moves) // (2 * n_threads)))
    return [partial(_read, device, moves[at : at + n]) for at in range(0, len(moves), n)]


def _read(device: Device, moves: Sequence[Move]) -> None:
    for item, piece in moves:
        item.read(device, piece)
