"""Persistent threads with two queues: what somebody waits for goes first, within bounds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack

PATIENCE = 128
"""So many reads go before a write that waits, and no more: readers that never pause do not stop all writing."""
_JOIN_S = 1.0

Job = Callable[[], None]


class IoThreads:
    """`n_threads` daemon threads. Jobs raise nothing."""

    def __init__(self, n_threads: int, name: str, at_end: Job | None = None) -> None:
        """`at_end` runs on the last thread, when it has no job any more."""
        self._ready = threading.Condition()
        self._urgent: deque[Job] = deque()
        self._normal: deque[Job] = deque()
        self._n_passed = 0
        """Urgent jobs since the last that was not."""
        self._is_closed = False
        self._at_end = at_end
        self._n_alive = 0
        self._threads: list[threading.Thread] = []
        with ExitStack() as undo:  # where the system gives no further thread
            undo.callback(self.close)
            for i in range(n_threads):
                thread = threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True)
                self._n_alive += 1
                try:
                    thread.start()
                except RuntimeError:
                    self._n_alive -= 1
                    raise
                self._threads.append(thread)
            undo.pop_all()

    def put(self, jobs: Sequence[Job], *, is_urgent: bool) -> None:
        """Run jobs when there is time, in order; here and now where all threads have ended."""
        with self._ready:
            has_threads = self._n_alive > 0
            if has_threads:
                (self._urgent if is_urgent else self._normal).extend(jobs)
                self._ready.notify(len(jobs))
        if not has_threads:
            for job in jobs:
                job()

    def close(self) -> None:
        """End the threads, behind what is queued."""
        with self._ready:
            self._is_closed = True
            self._ready.notify_all()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:  # on a disk that hangs it is left behind: a daemon
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        if self._loop() and self._at_end is not None:
            self._at_end()

    def _loop(self) -> bool:
        """Whether this was the last of the threads."""
        while True:
            with self._ready:
                while not (self._urgent or self._normal):
                    if self._is_closed:
                        self._n_alive -= 1
                        return not self._n_alive
                    self._ready.wait()
                job = self._next()
            job()
            del job  # an idle thread keeps no buffer alive

    def _next(self) -> Job:
        """The lock is held."""
        if self._urgent and not (self._normal and self._n_passed >= PATIENCE):
            self._n_passed += 1
            return self._urgent.popleft()
        self._n_passed = 0
        return self._normal.popleft()
