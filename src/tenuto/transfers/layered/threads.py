"""Threads that take the next piece of work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


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
