"""How a lane's thread waits for a GPU: it sleeps most of the time, and is awake when the copies end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

_MARGIN = 0.85  # of the time that the fastest copies so far would need
_WORTH_S = 5e-4  # what is shorter is spun through: a sleeper is up to that much late
_NO_WIRE = 1e12  # bytes a second that no wire has: copies that had ended before anybody looked
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

    def now(self) -> float:
        """To be taken before copies are queued."""
        return self._clock()

    def wait(self, ended: Event, after: Event, n_bytes: int, queued_at: float) -> None:
        """Wait for `n_bytes` of copies that were queued behind `after`, from `queued_at` on."""
        began = queued_at
        while not after.query():
            self._sleep(max(_PAUSE_S, (self._clock() - began) * _PAUSE_SHARE))
            queued_at = self._clock()
        expected = n_bytes / self._bytes_s if self._bytes_s else 0.0
        left = queued_at + expected * _MARGIN - self._clock()
        if left > _WORTH_S and not ended.query():
            self._sleep(left)
            if ended.query():  # overslept: the next wait finds out how fast it is by now
                self._bytes_s = 0.0
                return
        ended.synchronize()
        self._bytes_s = max(self._bytes_s, n_bytes / max(self._clock() - queued_at, n_bytes / _NO_WIRE))
