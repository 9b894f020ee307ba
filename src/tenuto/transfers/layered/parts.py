"""What layered loads and stores have in common: where bytes lie, and threads that take the next piece of work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tenuto.errors import Cause
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.store import Failure, SlotIO, Store
from tenuto.transfers.lanes import Device
from tenuto.transfers.plan import BlockFailure, Transfer, TransferResult


@dataclass(slots=True)
class Parts:
    """A worker's. `codec` is replaced by a reset."""

    device: Device
    arena: HostArena
    codec: ExtentCodec
    store: Store | None = None
    clock: Callable[[], float] = time.monotonic

    @property
    def n_layers(self) -> int:
        """Layers of an extent."""
        return self.codec.layout.n_layers

    def items(
        self, transfer: Transfer, slots: Sequence[int], host_slots: Sequence[int], indices: Sequence[int]
    ) -> list[SlotIO]:
        """Blocks of a transfer, in a store's slots and in host slots, both by index."""
        return [SlotIO(slots[i], transfer.keys[i], self.arena.slot(host_slots[i])) for i in indices]

    def needed_store(self) -> Store:
        """The store that a transfer names."""
        if self.store is None:
            raise RuntimeError("a transfer names the disk tier, which this worker does not have")
        return self.store


Failures = dict[int, BlockFailure]
"""By index in a transfer."""


def at_indices(failures: Sequence[Failure], indices: Sequence[int], start: int = 0) -> Failures:
    """A store's failures, as of a transfer's blocks at `indices`, which are the store's items from `start` on."""
    mine = {indices[f.index - start]: f for f in failures if start <= f.index < start + len(indices)}
    return {index: BlockFailure(index, f.cause, f.message) for index, f in mine.items()}


def all_fail(indices: Sequence[int], cause: Cause, message: str = "") -> Failures:
    """Each for the same reason."""
    return {index: BlockFailure(index, cause, message) for index in indices}


def result(transfer: Transfer, failures: Failures, extent_bytes: int, seconds: float) -> TransferResult:
    """How a transfer ended."""
    n_bytes = (len(transfer.keys) - len(failures)) * extent_bytes
    return TransferResult(transfer.id, tuple(failures[index] for index in sorted(failures)), n_bytes, seconds)


class Threads:
    """Threads that do what `take` gives them, until it is closed. `changed` is its lock: notify it of new work."""

    def __init__(self, name: str, n: int, take: Callable[[], Callable[[], None] | None]) -> None:
        """`take` is called under the lock; None: nothing to do now."""
        self.changed = threading.Condition()
        self._take = take
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._loop, name=f"tenuto-{name}-{number}", daemon=True) for number in range(n)
        ]
        for thread in self._threads:
            thread.start()

    def close(self, timeout_s: float) -> bool:
        """End when there is nothing to do; whether that came within `timeout_s`."""
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _loop(self) -> None:
        while True:
            with self.changed:
                while (do := self._take()) is None:
                    if self._is_closed:
                        return
                    self.changed.wait()
            do()
            with self.changed:
                self.changed.notify_all()
