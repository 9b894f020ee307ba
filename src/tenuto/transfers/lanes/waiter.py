"""How a lane's thread waits for a GPU: it sleeps most of the time, and is awake when the copies end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

_MARGIN = 0.85  # of the time that the fastest copies so far would need
_WORTH_S = 5e-4  # what is shorter is spun through: a sleeper is up to that much late
_NO_WIRE = 1e12  # bytes a second that no wire has: copies that had ended before anybody looked
_SURE = 0.2  # of the time it took: who doesn't know the beginning better than this can't tell how slow copies are
_LATE_S = 1e-3  # that an event wakes a sleeper at most


class Event(Protocol):
    """What is used of `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether it has passed."""
        ...

    def synchronize(self) -> None:
        """Return when it has: spinning or asleep, as it was made, without the interpreter lock."""
        ...


class Waiter:
    """Learns how fast copies in one direction are. Any threads may wait, for copies that end in the order of queueing.

    An event that wakes a sleeper does so up to a millisecond late, which is early enough for the beginning. Looking
    again and again would take the interpreter lock from the engine; so for the end it sleeps through what the fastest
    copies so far would need, and then spins. Too low a rate would make it late. So time in which copies may not have
    run, because nobody saw them begin or others were before them, can only show that they are faster than was known:
    while nothing is known, it teaches nothing.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._bytes_s = 0.0  # 0: not known
        self._lock = threading.Lock()
        self._n_waiting = 0
        self._n_waits = 0

    def now(self) -> float:
        """To be taken before copies are queued."""
        return self._clock()

    def wait(self, ended: Event, after: Event, n_bytes: int, queued_at: float) -> None:
        """Wait for `n_bytes` of copies that were queued behind `after`, from `queued_at` on.

        `after` wakes sleepers, `ended` has them spin.
        """
        with self._lock:
            self._n_waits += 1
            self._n_waiting += 1
            number = self._n_waits if self._n_waiting == 1 else 0
        try:
            is_overslept, began, seen = self._sleep_until(ended, after, n_bytes, queued_at)
            ended.synchronize()
        finally:
            with self._lock:
                self._n_waiting -= 1
        took_s = max(self._clock() - began, n_bytes / _NO_WIRE)
        is_alone = number == self._n_waits
        if is_overslept:
            self._bytes_s = 0.0  # the next wait finds out how fast it is by now
        elif self._bytes_s or (is_alone and seen - began <= _SURE * took_s):
            self._bytes_s = max(self._bytes_s, n_bytes / took_s)

    def _sleep_until(self, ended: Event, after: Event, n_bytes: int, queued_at: float) -> tuple[bool, float, float]:
        """Sleep until it is worth spinning: (whether that was too long, copies began not before, and not after)."""
        began, seen = queued_at, self._clock()
        if not after.query():
            after.synchronize()
            asleep_since, seen = seen, self._clock()
            began = max(asleep_since, seen - _LATE_S)
        expected = n_bytes / self._bytes_s if self._bytes_s else 0.0
        left = began + expected * _MARGIN - seen
        if left > _WORTH_S and not ended.query():
            self._sleep(left)
            return ended.query(), began, seen
        return False, began, seen
