"""A rate, kept to the byte, and a store that is as slow as is wished."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from tenuto.memory.layout import ExtentLayout
from tenuto.tiers.store import OWN, Capacity, Failure, Layers, SlotIO, Store


class Pace:
    """At most `bytes_s` bytes a second, however many threads move some: a token bucket of size zero.

    They are served in the order in which they come, each behind all bytes that were asked for before; time in which
    nobody asks is lost. `clock` gives seconds, `sleep` takes them: `time.monotonic` and `time.sleep`.
    """

    def __init__(self, bytes_s: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._bytes_s = bytes_s
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = clock()

    @contextmanager
    def moving(self, n_bytes: int) -> Generator[None]:
        """Around the moving of so many bytes: ends when they are due, or when they have moved, if that is later."""
        with self._lock:
            due = self._free_at = max(self._free_at, self._clock()) + n_bytes / self._bytes_s
        yield
        left_s = due - self._clock()
        if left_s > 0.0:
            self._sleep(left_s)


class PacedStore:
    """Lets at most `bytes_s` bytes a second through to a store, reads and writes alike; see `Pace`."""

    def __init__(
        self,
        store: Store,
        layout: ExtentLayout,
        bytes_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.store = store
        self._layout = layout
        self._pace = Pace(bytes_s, clock, sleep)

    def capacity(self) -> Capacity:
        """See `Store`."""
        return self.store.capacity()

    def write(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        return self._paced(len(items) * self._layout.extent_bytes, lambda: self.store.write(items))

    def write_layers(self, items: Sequence[SlotIO], layers: Layers) -> list[Failure]:
        """See `Store`."""
        n_bytes = (layers[1] - layers[0]) * self._layout.segment_bytes
        return self._paced(len(items) * n_bytes, lambda: self.store.write_layers(items, layers))

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        return self._paced(len(items) * self._layout.header_bytes, lambda: self.store.commit(items))

    def read(self, items: Sequence[SlotIO], volume: str = OWN, layers: Layers | None = None) -> list[Failure]:
        """See `Store`."""
        first, last = layers or (0, self._layout.n_layers)
        n_bytes = (last - first) * self._layout.segment_bytes + (0 if first else self._layout.header_bytes)
        return self._paced(len(items) * n_bytes, lambda: self.store.read(items, volume, layers))

    def forget(self, slots: Sequence[int]) -> None:
        """See `Store`."""
        self.store.forget(slots)

    def reset(self, namespace: bytes, epoch: int) -> None:
        """See `Store`."""
        self.store.reset(namespace, epoch)

    def close(self) -> None:
        """See `Store`."""
        self.store.close()

    def _paced(self, n_bytes: int, move: Callable[[], list[Failure]]) -> list[Failure]:
        with self._pace.moving(n_bytes):
            return move()
