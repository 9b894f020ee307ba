"""Runs transfers on a worker: loads on one lane, stores on another, so that neither waits for the other."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tenuto.errors import Cause
from tenuto.transfers.lanes import Landing
from tenuto.transfers.lanes.device import Mark
from tenuto.transfers.movers import Movers
from tenuto.transfers.plan import BlockFailure, Route, Transfer, TransferResult, all_fail

logger = logging.getLogger(__name__)

_LANES = {
    "load": Route.DISK_TO_HOST,
    "copy": Route.HOST_TO_DEVICE,
    "store": Route.HOST_TO_DISK,
    "direct": Route.DISK_TO_DEVICE,
    "stage": Route.DEVICE_TO_HOST,
}


@dataclass(slots=True)
class _Job:
    """One transfer on its way. `deadline` is on the engine's clock."""

    transfer: Transfer
    deadline: float
    waits_for: set[int]
    mark: Mark = None  # loads into the device come after it
    began: float = 0.0
    landing: Landing | None = None  # of copies out of the device, once they are queued
    dropped: dict[int, BlockFailure] = field(default_factory=dict[int, BlockFailure])
    is_given_up: bool = False  # answered already; must not touch the device any more
    is_on_lane: bool = False
    is_touching: bool = False  # writing the device now; can't be given up until that ends


class _Lane:
    """One daemon thread and its queue."""

    def __init__(self, name: str, run: Callable[[_Job], None]) -> None:
        self._ready = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._run = run
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name=f"tenuto-{name}", daemon=True)
        self._thread.start()

    def put(self, job: _Job) -> None:
        with self._ready:
            self._queue.append(job)
            self._ready.notify()

    def close(self) -> None:
        with self._ready:
            self._is_closed = True
            self._ready.notify()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended by then."""
        self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while True:
            with self._ready:
                while not self._queue:
                    if self._is_closed:
                        return
                    self._ready.wait()
                job = self._queue.popleft()
            self._run(job)


class TransferEngine:
    """Submit on the engine's thread, poll results there; lanes do the moving.

    Device → host transfers are queued in `submit` itself, in the order of the engine's computing, and loads into the
    device come after what was queued when they were submitted. A load that has not
    ended by its deadline is answered TIMEOUT and never touches the device afterwards; what it brings to host
    memory later is still reported by the transfer that brought it.
    """

    def __init__(
        self,
        movers: Movers,
        *,
        load_timeout_s: float,
        max_queued_stores: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._movers = movers
        self._load_timeout_s = load_timeout_s
        self._max_queued_stores = max_queued_stores
        self._clock = clock
        self._changed = threading.Condition()
        self._jobs: dict[int, _Job] = {}
        self._results: list[TransferResult] = []
        self._lanes: dict[Route, _Lane] = {}
        with ExitStack() as undo:  # where the system gives no further thread
            undo.callback(self.close)
            for name, route in _LANES.items():
                self._lanes[route] = _Lane(name, self._run)
            undo.pop_all()

    def submit(self, transfers: Sequence[Transfer], queued: Mapping[int, Landing] | None = None) -> None:
        """Take transfers; each gets exactly one result, from `poll`. `queued`: by id, copies that are on their way.

        Raises `ValueError`, with none taken, for one out of the device that is to come after another: it has to be
        queued here and now.
        """
        for transfer in transfers:
            if transfer.after and transfer.route is Route.DEVICE_TO_HOST:
                raise ValueError(f"transfer {transfer.id} out of the device can't wait for {transfer.after}")
        ready: list[_Job] = []
        queued = queued or {}
        now = self._clock()
        mark = self._movers.mark() if any(t.pages and t.route.is_load for t in transfers) else None
        with self._changed:
            n_stores = sum(job.transfer.route is Route.HOST_TO_DISK for job in self._jobs.values())
            for transfer in transfers:
                job = _Job(transfer, now + self._load_timeout_s,
                           {i for i in transfer.after if i in self._jobs}, mark,
                           landing=queued.get(transfer.id))  # fmt: skip
                if transfer.route is Route.HOST_TO_DISK:
                    n_stores += 1
                    if n_stores > self._max_queued_stores:
                        self._finish(transfer, all_fail(range(len(transfer.keys)), Cause.THROTTLED), 0.0)
                        continue
                self._jobs[transfer.id] = job
                if not job.waits_for:
                    ready.append(job)
        self._start_all(ready)

    def settle(self) -> None:
        """What the engine queues from now on can't overtake the device → host transfers so far."""
        self._movers.settle()

    def poll(self, wait_s: float = 0.0) -> list[TransferResult]:
        """Results since the last call, waiting up to `wait_s` for one; loads past their deadline are given up."""
        if not (wait_s or self._jobs or self._results):  # as in most steps
            return []
        now = self._clock()
        with self._changed:
            if wait_s and not self._results:
                self._changed.wait(wait_s)
            late = [job for job in self._jobs.values() if now >= job.deadline]
            ready = [follower for job in late for follower in self._give_up(job, Cause.TIMEOUT)]
            results, self._results = self._results, []
        self._start_all(ready)
        return results

    def cancel(self, transfer_ids: Sequence[int]) -> None:
        """Give up loads to the device, unless they are writing it right now."""
        with self._changed:
            jobs = [self._jobs[transfer_id] for transfer_id in dict.fromkeys(transfer_ids) if transfer_id in self._jobs]
            ready = [follower for job in jobs for follower in self._give_up(job, Cause.CANCELLED)]
        self._start_all(ready)

    def n_pending(self) -> int:
        """Transfers without a result."""
        with self._changed:
            return len(self._jobs)

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is pending; whether that came within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs, timeout_s)

    def close(self, timeout_s: float = 0.0) -> bool:
        """End the lanes after what is queued; whether that came within `timeout_s`. From then on nothing is touched."""
        for lane in self._lanes.values():
            lane.close()
        deadline = time.monotonic() + timeout_s
        return all(lane.join(deadline - time.monotonic()) for lane in self._lanes.values())

    def _start_all(self, jobs: Sequence[_Job]) -> None:
        """Without the lock. Jobs out of the device come from `submit` alone: the engine's thread queues them."""

        def gather(job: _Job, indices: list[int]) -> list[BlockFailure]:
            job.landing = job.landing or self._movers.gather(job.transfer, indices)
            return []

        try:
            for job in jobs:
                if job.transfer.route is Route.DEVICE_TO_HOST:
                    job.began = self._clock()
                    job.dropped |= self._attempt(job, gather)
                    if job.landing is None or job.landing.has_ended:
                        self._run(job)
                        continue
                job.is_on_lane = True
                self._lanes[job.transfer.route].put(job)
        except BaseException:  # a Ctrl-C while this thread copies: nobody else would answer
            with self._changed:
                left = [job for job in jobs if not job.is_on_lane and job.transfer.id in self._jobs]
                failed = [(job, all_fail(range(len(job.transfer.keys)), Cause.CANCELLED)) for job in left]
                ready = [follower for job, failures in failed for follower in self._end(job, failures, 0.0)]
            self._start_all(ready)
            raise

    def _run(self, job: _Job) -> None:
        if job.transfer.route is not Route.DEVICE_TO_HOST:
            job.began = self._clock()
        failures = job.dropped | self._attempt(job, self._move)
        seconds = self._clock() - job.began
        with self._changed:
            ready = [] if job.is_given_up else self._end(job, failures, seconds)
        self._start_all(ready)

    def _attempt(self, job: _Job, do: Callable[[_Job, list[int]], list[BlockFailure]]) -> dict[int, BlockFailure]:
        """The failures of `do` over the blocks that have not failed yet; all of them when it can't say."""
        indices = [i for i in range(len(job.transfer.keys)) if i not in job.dropped]
        if not indices or job.is_given_up:
            return {}
        try:
            return {failure.index: failure for failure in do(job, indices)}
        except Exception:
            logger.exception("transfer %d (%s) failed", job.transfer.id, job.transfer.route.value)
            return all_fail(indices, Cause.IO_ERROR, "internal error")

    def _move(self, job: _Job, indices: list[int]) -> list[BlockFailure]:
        if job.landing is not None:
            self._movers.land(job.transfer, indices, job.landing)
            return []
        return self._movers.move(job.transfer, indices, lambda: self._touching(job), job.mark)

    @contextmanager
    def _touching(self, job: _Job) -> Generator[bool]:
        """Whether the device may be written, and while the block runs the job can't be given up."""
        with self._changed:
            job.is_touching = not job.is_given_up
        try:
            yield job.is_touching
        finally:
            with self._changed:
                job.is_touching = False

    def _give_up(self, job: _Job, cause: Cause) -> list[_Job]:
        """Under the lock: answer a load to the device before it ends. As `_end`; nothing where that can't be."""
        transfer = job.transfer
        if not transfer.pages or not transfer.route.is_load or job.is_touching:
            return []
        job.is_given_up = True
        return self._end(job, job.dropped | all_fail(range(len(transfer.keys)), cause), 0.0)

    def _end(self, job: _Job, failures: dict[int, BlockFailure], seconds: float) -> list[_Job]:
        """Under the lock: answer a job. What waited for it alone is to be started, once the lock is released."""
        transfer = job.transfer
        ready: list[_Job] = []
        del self._jobs[transfer.id]
        self._finish(transfer, failures, seconds)
        hashes = {transfer.keys[index].hash: failure for index, failure in failures.items()}
        for other in list(self._jobs.values()):
            if transfer.id not in other.waits_for:
                continue
            other.waits_for.discard(transfer.id)
            for index, key in enumerate(other.transfer.keys):
                if key.hash in hashes:
                    cause = hashes[key.hash].cause
                    other.dropped[index] = BlockFailure(index, cause, "its source failed")
            if not other.waits_for:
                ready.append(other)
        self._changed.notify_all()
        return ready

    def _finish(self, transfer: Transfer, failures: dict[int, BlockFailure], seconds: float) -> None:
        self._results.append(TransferResult.of(transfer, failures, self._movers.extent_bytes, seconds))
