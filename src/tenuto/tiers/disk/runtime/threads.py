"""Persistent threads with two queues: what somebody waits for goes first."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack

_JOIN_S = 1.0

Job = Callable[[], None]


class IoThreads:
    """`n_threads` daemon threads. Jobs raise nothing."""

    def __init__(self, n_threads: int, name: str) -> None:
        self._ready = threading.Condition()
        self._urgent: deque[Job] = deque()
        self._normal: deque[Job] = deque()
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        with ExitStack() as undo:  # where the system gives no further thread
            undo.callback(self.close)
            for i in range(n_threads):
                thread = threading.Thread(target=self._loop, name=f"{name}-{i}", daemon=True)
                thread.start()
                self._threads.append(thread)
            undo.pop_all()

    def put(self, jobs: Sequence[Job], *, is_urgent: bool) -> None:
        """Run jobs when there is time, in order."""
        with self._ready:
            (self._urgent if is_urgent else self._normal).extend(jobs)
            self._ready.notify(len(jobs))

    def close(self) -> None:
        """End the threads, behind what is queued."""
        with self._ready:
            self._is_closed = True
            self._ready.notify_all()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:  # on a disk that hangs it is left behind: a daemon
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def is_alive(self) -> bool:
        """Whether a thread has not ended."""
        return any(thread.is_alive() for thread in self._threads)

    def _loop(self) -> None:
        while True:
            with self._ready:
                while not (self._urgent or self._normal):
                    if self._is_closed:
                        return
                    self._ready.wait()
                job = (self._urgent or self._normal).popleft()
            job()
            del job  # an idle thread keeps no buffer alive
