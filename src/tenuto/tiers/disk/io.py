"""Persistent I/O threads: reads that someone waits for go before writes."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tenuto.errors import StoreError

logger = logging.getLogger(__name__)

_JOIN_S = 5.0

Job = Callable[[], None]


class _Batch:
    """Jobs that end together. An unexpected error is kept for the thread that waits."""

    def __init__(self, n_jobs: int) -> None:
        self.errors: list[StoreError | None] = [None] * n_jobs
        self.unexpected: BaseException | None = None
        self._left = n_jobs
        self._lock = threading.Lock()
        self.ended = threading.Event()

    def run(self, index: int, job: Job) -> None:
        try:
            job()
        except StoreError as error:
            self.errors[index] = error
        except BaseException as error:  # noqa: BLE001 - border of a thread: re-raised by IoThreads.run
            self.unexpected = error
        with self._lock:
            self._left -= 1
            if not self._left:
                self.ended.set()


class IoThreads:
    """`n_threads` daemon threads with two queues, urgent first."""

    def __init__(self, n_threads: int, name: str) -> None:
        self._ready = threading.Condition()
        self._urgent: deque[tuple[_Batch, int, Job]] = deque()
        self._normal: deque[tuple[_Batch, int, Job]] = deque()
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        with ExitStack() as undo:  # where the system gives no further thread
            undo.callback(self.close)
            for i in range(n_threads):
                thread = threading.Thread(target=self._loop, name=f"{name}-{i}", daemon=True)
                thread.start()
                self._threads.append(thread)
            undo.pop_all()

    def run(self, jobs: Sequence[Job], *, is_urgent: bool) -> list[StoreError | None]:
        """Run all jobs, wait for them, and give the error of each that had one."""
        if not jobs:
            return []
        batch = _Batch(len(jobs))
        with self._ready:
            queue = self._urgent if is_urgent else self._normal
            queue.extend((batch, index, job) for index, job in enumerate(jobs))
            self._ready.notify(len(jobs))
        batch.ended.wait()
        if batch.unexpected is not None:
            raise batch.unexpected
        return batch.errors

    def start(self, job: Job) -> None:
        """Run a job when there is time, and only log its error."""

        def logged() -> None:
            try:
                job()
            except StoreError as error:
                logger.warning("%s", error)

        with self._ready:
            self._normal.append((_Batch(1), 0, logged))
            self._ready.notify()

    def close(self) -> None:
        """Finish what is queued and end the threads."""
        with self._ready:
            self._is_closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_S)  # on a disk that hangs it is left behind: a daemon

    def _loop(self) -> None:
        while True:
            with self._ready:
                while not (self._urgent or self._normal):
                    if self._is_closed:
                        return
                    self._ready.wait()
                batch, index, job = (self._urgent or self._normal).popleft()
            batch.run(index, job)
            del batch, job  # an idle thread keeps no buffer alive
