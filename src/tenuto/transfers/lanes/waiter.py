"""How a lane's thread waits for a GPU: it sleeps most of the time, and is awake when the copies end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

_MARGIN = 0.85  # of the time that the fastest copies so far would need
_PAUSE_S, _PAUSE_SHARE = 5e-5, 0.01  # between two looks; of the time so far


class Event(Protocol):
    """What is used of `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether it has passed."""
        ...

    def synchronize(self) -> None:
        """Spin until it has, without the interpreter lock."""
        ...


class Waiter:
    """Learns how fast copies in one direction are.

    An event that wakes a sleeper does so up to a millisecond late, and looking again and again takes the interpreter
    lock from the engine; so it sleeps through what the fastest copies so far would need, and then spins.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._bytes_s = 0.0

    def wait(self, ended: Event, after: Event, n_bytes: int) -> None:
        """Wait for `n_bytes` of copies that were queued just now behind `after`."""
        began = self._clock()
        while not after.query():
            self._sleep(max(_PAUSE_S, (self._clock() - began) * _PAUSE_SHARE))
        started = self._clock()
        if self._bytes_s and not ended.query():
            self._sleep(n_bytes / self._bytes_s * _MARGIN)
        ended.synchronize()
        self._bytes_s = max(self._bytes_s, n_bytes / max(self._clock() - started, n_bytes / 1e12))
