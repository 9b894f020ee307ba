"""Workers that move names of blocks instead of bytes, and notice every race on a slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tenuto.errors import Cause
from tenuto.pools.facts import TierKind
from tenuto.tokens import BlockHash
from tenuto.transfers.plan import BlockFailure, Route, Transfer, TransferResult

Place = tuple[TierKind, int]
"""A slot of a tier."""

_READS: dict[Route, TierKind] = {
    Route.HOST_TO_DISK: TierKind.HOST,
    Route.HOST_TO_DEVICE: TierKind.HOST,
    Route.DISK_TO_HOST: TierKind.DISK,
    Route.DISK_TO_DEVICE: TierKind.DISK,
}
_WRITES: dict[Route, TierKind] = {
    Route.DEVICE_TO_HOST: TierKind.HOST,
    Route.DISK_TO_HOST: TierKind.HOST,
    Route.HOST_TO_DISK: TierKind.DISK,
}


@dataclass(slots=True)
class _Job:
    """A transfer on its way; `dropped` blocks failed in one it waits for."""

    transfer: Transfer
    dropped: dict[int, Cause] = field(default_factory=dict[int, Cause])
    is_running: bool = False
    is_given_up: bool = False

    def indices(self) -> Iterator[int]:
        return (index for index in range(len(self.transfer.keys)) if index not in self.dropped)

    def reads(self) -> Iterator[tuple[int, Place]]:
        tier = _READS.get(self.transfer.route)
        if tier is not None and not (tier is TierKind.DISK and self.transfer.volume):
            yield from ((index, (tier, self.transfer.sources[index])) for index in self.indices())

    def writes(self) -> Iterator[tuple[int, Place]]:
        tier = _WRITES.get(self.transfer.route)
        if tier is not None:
            yield from ((index, (tier, self.transfer.targets[index])) for index in self.indices())


class SimulatedWorker:
    """One rank. The test starts and ends transfers in any order that their `after` allows.

    Every start asserts that each source slot holds the expected block, that nobody is writing it, and that nobody is
    reading or writing a target slot. Slots of other volumes are not looked at.
    """

    def __init__(self) -> None:
        self.content: dict[Place, BlockHash | None] = {}
        """What each slot holds; None: undefined, after a failed or unfinished write."""
        self.results: list[TransferResult] = []
        """Results in the order in which transfers ended."""
        self._jobs: dict[int, _Job] = {}

    def submit(self, transfers: Iterable[Transfer], failures: Mapping[int, Cause] | None = None) -> None:
        """Take transfers. Device → host ones run at once, as in a step, less their blocks in `failures`."""
        taken = list(transfers)
        for transfer in taken:
            assert transfer.id not in self._jobs, f"transfer {transfer.id} came twice"
            self._jobs[transfer.id] = _Job(transfer)
        for transfer in taken:
            if transfer.route is Route.DEVICE_TO_HOST:
                self.start(transfer.id)
                self.end(transfer.id, failures)

    def startable(self) -> list[int]:
        """Transfers that could start now."""
        return [
            number
            for number, job in self._jobs.items()
            if not job.is_running and not any(after in self._jobs for after in job.transfer.after)
        ]

    def running(self) -> list[int]:
        """Transfers that have started."""
        return [number for number, job in self._jobs.items() if job.is_running]

    def loads(self) -> list[int]:
        """Loads to the device that could be given up now: they have not touched it."""
        return [
            number
            for number, job in self._jobs.items()
            if job.transfer.pages and job.transfer.route.is_load and not job.is_running
        ]

    def start(self, number: int) -> None:
        """A transfer begins to read its sources and to write its targets."""
        job = self._jobs[number]
        others = [other for other in self._jobs.values() if other.is_running]
        written = {place for other in others for _, place in other.writes()}
        read = {place for other in others for _, place in other.reads()}
        for index, place in job.reads():
            assert place not in written, f"{job.transfer} reads {place} while it is written"
            expected = job.transfer.keys[index].hash
            assert self.content.get(place) == expected, f"{job.transfer} reads another block in {place}"
        for _, place in job.writes():
            assert place not in written | read, f"{job.transfer} writes {place}, which is in use"
            self.content[place] = None
        job.is_running = True

    def end(self, number: int, failures: Mapping[int, Cause] | None = None) -> None:
        """A running transfer has ended; blocks in `failures` that it has were not moved."""
        job = self._jobs.pop(number)
        moved = set(job.indices())
        failed = job.dropped | {i: cause for i, cause in (failures or {}).items() if i in moved}
        for index, place in job.writes():
            if index not in failed:
                self.content[place] = job.transfer.keys[index].hash
        self._answer(job.transfer, failed)

    def give_up(self, number: int, cause: Cause = Cause.TIMEOUT) -> None:
        """A load is answered before it has begun, and never begins."""
        assert number in self.loads()
        job = self._jobs.pop(number)
        self._answer(job.transfer, job.dropped | dict.fromkeys(job.indices(), cause))

    def run(self, transfers: Sequence[Transfer] = ()) -> list[TransferResult]:
        """Take transfers and let everything end; the results that were not taken yet."""
        self.submit(transfers)
        while self._jobs:
            for number in self.running():
                self.end(number)
            ready = self.startable()
            assert ready or not self._jobs, "transfers wait for each other"
            for number in ready[:1]:
                self.start(number)
        return self.take()

    def take(self, n: int | None = None) -> list[TransferResult]:
        """The `n` oldest results (None: all)."""
        taken, self.results = self.results[:n], self.results[len(self.results) if n is None else n :]
        return taken

    def __len__(self) -> int:
        """Transfers that have not ended."""
        return len(self._jobs)

    def _answer(self, transfer: Transfer, failed: Mapping[int, Cause]) -> None:
        failures = tuple(BlockFailure(index, failed[index]) for index in sorted(failed))
        self.results.append(TransferResult(transfer.id, failures))
        causes = {transfer.keys[index].hash: cause for index, cause in failed.items()}
        for job in self._jobs.values():
            if transfer.id in job.transfer.after:
                for index, key in enumerate(job.transfer.keys):
                    if key.hash in causes:
                        job.dropped[index] = causes[key.hash]
