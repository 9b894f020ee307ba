"""One file striped over four folders, against the folders alone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Figures
from tenuto.cli.bench.workfolder import work_folder
from tenuto.errors import TenutoError
from tenuto.memory.arena import HostArena
from tenuto.testing.pacing import Pace
from tenuto.tiers.disk.runtime import Done, File, IoRequest, Memory, Op, RuntimeSettings, move, run_devices
from tenuto.tiers.disk.runtime.contract import StorageRuntime
from tenuto.tiers.disk.runtime.device import Device, Span
from tenuto.tiers.disk.runtime.direct import DirectFiles

UNIT = (1 << 20) + 4096
"""An extent of 1 MiB and its header: it never fits a stripe's unit."""
SHARED_MEMORY = Path("/dev/shm")
N_FOLDERS = 4


@dataclass(frozen=True, slots=True)
class StripingSizes:
    """Units in the file of one folder, and of one in memory that moves `limit_bytes_s` at most."""

    n_units: int = 256
    n_memory_units: int = 64
    n_rounds: int = 5
    limit_bytes_s: float = 150e6


class SlowFolder(DirectFiles):
    """A folder that moves so many bytes a second, however many threads ask: a disk, made up."""

    def __init__(self, root: Path, bytes_s: float) -> None:
        super().__init__(root)
        self._pace = Pace(bytes_s, time.perf_counter, time.sleep)

    def read(self, file: File, offset: int, spans: Sequence[Span]) -> int:
        """See `Device`."""
        with self._pace.moving(sum(span.n_bytes for span in spans)):
            return super().read(file, offset, spans)

    def write(self, file: File, offset: int, spans: Sequence[Span]) -> None:
        """See `Device`."""
        with self._pace.moving(sum(span.n_bytes for span in spans)):
            super().write(file, offset, spans)

    def open_queue(self, n_events: int) -> None:
        """See `QueuedDevice`. The kernel would not keep the pace."""


def measure_striping(folder: Path, sizes: StripingSizes, bar: Bar) -> Figures:
    """Medians over rounds; each ratio is of rates of the same round, and the lower of reads' and writes'.

    `striped_over_one`: four folders of one disk against one of them. `striped_over_sum`: four folders in memory, each
    slowed to a made-up rate, as four disks would be, against the sum of what each does alone. Items have `UNIT` bytes.
    """
    with work_folder(folder) as work:
        over_one = _over_one(_parts(work), sizes, bar)
    needed = 2 * N_FOLDERS * sizes.n_memory_units * UNIT
    has_room = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > needed
    memory = SHARED_MEMORY if has_room else folder
    with work_folder(memory) as work:
        over_sum = _over_sum(_parts(work), sizes, bar)
    return {"striped_over_one": over_one, "striped_over_sum": over_sum}


def _over_one(parts: list[Path], sizes: StripingSizes, bar: Bar) -> float:
    one = _File([DirectFiles(parts[0])], "one", sizes.n_units)
    many = _File([DirectFiles(part) for part in parts], "all", sizes.n_units)
    ratios: dict[Op, list[float]] = {Op.WRITE: [], Op.READ: []}
    with closing(one), closing(many):
        for number in bar.over(range(sizes.n_rounds), "disk: striped, one folder", sizes.n_rounds):
            for op, seen in ratios.items():
                if number % 2:
                    theirs, ours = one.rate(op), many.rate(op)
                else:
                    ours, theirs = many.rate(op), one.rate(op)
                seen.append(ours / theirs)
    return _lower(ratios)


def _over_sum(parts: list[Path], sizes: StripingSizes, bar: Bar) -> float:
    def slow(parts: list[Path], name: str) -> _File:
        devices = [SlowFolder(part, sizes.limit_bytes_s) for part in parts]
        return _File(devices, name, sizes.n_memory_units * len(parts))

    ratios: dict[Op, list[float]] = {Op.WRITE: [], Op.READ: []}
    with ExitStack() as stack:
        many = stack.enter_context(closing(slow(parts, "all")))
        alone = [stack.enter_context(closing(slow([part], "alone"))) for part in parts]
        for _ in bar.over(range(sizes.n_rounds), "disk: striped, slow folders", sizes.n_rounds):
            for op, seen in ratios.items():
                ours = many.rate(op)
                seen.append(ours / sum(file.rate(op) for file in alone))
    return _lower(ratios)


def _lower(ratios: dict[Op, list[float]]) -> float:
    return round(min(median(seen) for seen in ratios.values()), 3)


def _parts(work: Path) -> list[Path]:
    parts = [work / str(number) for number in range(N_FOLDERS)]
    for part in parts:
        part.mkdir()
    return parts


class _File:
    """A file of a runtime, written before, moved whole again and again in units, in random order."""

    def __init__(self, devices: Sequence[Device], name: str, n_units: int) -> None:
        self._runtime: StorageRuntime = run_devices(name, devices, RuntimeSettings())
        self._n_units = n_units
        self._random = Random(0)
        arena = HostArena(n_units, UNIT)
        pattern = self._random.randbytes(UNIT)
        for slot in range(n_units):
            arena.slot(slot)[:] = pattern
        self._region = self._runtime.register_memory(Memory.of(arena.view))
        self._runtime.reserve(name, n_units * UNIT)
        (self._file,) = self._runtime.open_batch([name])
        self.rate(Op.WRITE)

    def rate(self, op: Op) -> float:
        """Bytes per second, of reads or writes."""
        order = self._random.sample(range(self._n_units), self._n_units)
        items = [IoRequest(op, self._file, at * UNIT, self._region, at * UNIT, UNIT) for at in order]
        began = time.perf_counter()
        states = move(self._runtime, items)
        took_s = time.perf_counter() - began
        if any(state != Done(UNIT) for state in states):
            raise TenutoError(f"an item did not move: {next(state for state in states if state != Done(UNIT))}")
        return self._n_units * UNIT / took_s

    def close(self) -> None:
        """Close the runtime, and with it its folders' files."""
        self._runtime.close()
