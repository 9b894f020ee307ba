"""The disk tier against fio on the same file system."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

from tenuto.cli.bench.fio import find_fio, run_fio
from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Figures
from tenuto.cli.bench.workfolder import work_folder
from tenuto.errors import ConfigError, TenutoError
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.tiers.disk import DiskSettings, DiskStore
from tenuto.tiers.disk.instance import claim
from tenuto.tiers.disk.quota import Quota
from tenuto.tiers.store import SlotIO
from tenuto.tokens import HashChain, Namespace

MIB = 1 << 20
LAYOUT = ExtentLayout(64, layers=(0, 8), heads=(0, 8), k_dim=64, v_dim=64, dtype=Dtype.BFLOAT16)
"""An extent of 1 MiB and its header."""
GROWTH_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class DiskSizes:
    """`n_units` of 1 MiB per direction and round; ours come in batches of `batch`, `n_threads` as in production."""

    n_units: int = 1024
    n_rounds: int = 15
    n_uring_rounds: int = 3
    batch: int = 64
    n_threads: int | None = None


@dataclass(slots=True)
class _Rates:
    """Bytes per second of each way, by round."""

    fio_write: list[float] = field(default_factory=list[float])
    fio_read: list[float] = field(default_factory=list[float])
    write: list[float] = field(default_factory=list[float])
    read: list[float] = field(default_factory=list[float])
    cores: list[float] = field(default_factory=list[float])
    """Of our reads and writes: the processor's time over the clock's."""


def measure_disk(folder: Path, sizes: DiskSizes, bar: Bar) -> Figures:
    """Medians over the rounds of our rate over fio's in the same round, and of the rates themselves.

    fio: one job, libaio, 1 MiB, queue depth 8, O_DIRECT, sequential writes and random reads of one file. Ours:
    `DiskStore` as in production: new blocks into slots that held others (manifest, header and sums included), then
    every block in random order, each verified. Both files are written before the first round. A round is fio's
    write, ours, fio's read, ours; every other round we go first, so that neither always has a rested disk. io_uring's
    rates, where fio has it, come from a few rounds at the end, for information. `cores`: seconds of all our threads
    over seconds of the clock, while we read and write.
    """
    program = find_fio()
    with _work_folder(folder, sizes) as work:
        file, n_bytes = work / "fio", sizes.n_units * MIB
        with closing(_Ours(work / "tenuto", sizes)) as ours:
            ours.write()
            run_fio(program, file, n_bytes, "write")
            rates = _Rates()
            ways: list[tuple[list[float], Callable[[], float]]] = [
                (rates.fio_write, lambda: run_fio(program, file, n_bytes, "write")),
                (rates.write, ours.write),
                (rates.fio_read, lambda: run_fio(program, file, n_bytes, "randread")),
                (rates.read, ours.read),
            ]
            for number in bar.over(range(sizes.n_rounds), "disk: fio, tenuto", sizes.n_rounds):
                for index in (0, 1, 2, 3) if number % 2 == 0 else (1, 0, 3, 2):
                    seen, way = ways[index]
                    seen.append(way())
            rates.cores = ours.cores
        return _figures(rates) | _uring(program, file, n_bytes, sizes.n_uring_rounds, bar)


def _figures(rates: _Rates) -> Figures:
    return {
        "read_over_fio": _ratio(rates.read, rates.fio_read),
        "write_over_fio": _ratio(rates.write, rates.fio_write),
        "read_gb_s": round(median(rates.read) / 1e9, 3),
        "write_gb_s": round(median(rates.write) / 1e9, 3),
        "fio_read_gb_s": round(median(rates.fio_read) / 1e9, 3),
        "fio_write_gb_s": round(median(rates.fio_write) / 1e9, 3),
        "cores": round(median(rates.cores), 3),
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(median(mine / other for mine, other in zip(ours, theirs, strict=True)), 3)


def _uring(program: str, file: Path, n_bytes: int, n_rounds: int, bar: Bar) -> Figures:
    try:
        pairs = [
            (
                run_fio(program, file, n_bytes, "write", "io_uring"),
                run_fio(program, file, n_bytes, "randread", "io_uring"),
            )
            for _ in bar.over(range(n_rounds), "disk: io_uring", n_rounds)
        ]
    except TenutoError:
        return {}  # a kernel or a sandbox without it
    write, read = (round(median(way) / 1e9, 3) for way in zip(*pairs, strict=True))
    return {"fio_uring_read_gb_s": read, "fio_uring_write_gb_s": write}


@contextmanager
def _work_folder(folder: Path, sizes: DiskSizes) -> Generator[Path]:
    """A folder of our own in `folder`, removed afterwards; refused when the files would not fit."""
    with work_folder(folder) as work:
        free, needed = shutil.disk_usage(work).free, 4 * sizes.n_units * MIB
        if free < needed:
            raise ConfigError(
                f"--dir: {folder} has {free / 1e9:.1f} GB free, the bench needs {needed / 1e9:.1f} GB; "
                "give a folder on another disk, or --quick"
            )
        yield work


class _Ours:
    """A disk store full of blocks, written and read again and again."""

    def __init__(self, root: Path, sizes: DiskSizes) -> None:
        self._sizes = sizes
        self._namespace = Namespace("bench", "", "", "bfloat16", "bfloat16", "", LAYOUT.block_tokens,
                                    LAYOUT.n_layers, LAYOUT.n_heads, LAYOUT.k_dim, LAYOUT.v_dim)  # fmt: skip
        self._codec = ExtentCodec(LAYOUT, self._namespace.digest)
        self._random = Random(0)
        self.cores: list[float] = []
        """Cores that each write and each read took."""
        self._arena = HostArena(sizes.n_units, LAYOUT.extent_bytes)
        for slot in range(self._arena.n_slots):
            self._arena.slot(slot)[:] = self._random.randbytes(LAYOUT.extent_bytes)
        root.mkdir()
        n_bytes = sizes.n_units * LAYOUT.extent_bytes
        settings = DiskSettings(Quota(root, 3 * n_bytes // 2 + 64 * MIB), n_bytes // 16, sizes.n_threads)
        self._store = DiskStore(claim(root, self._namespace, "bench", 0), self._codec, settings)
        self._store.buffers.attach(self._arena.view)
        self._new_blocks()
        self._fill()

    def write(self) -> float:
        """Bytes per second; new blocks in every slot."""
        self._new_blocks()
        began = self._clocks()
        for first in range(0, self._sizes.n_units, self._sizes.batch):
            self._write(range(first, min(first + self._sizes.batch, self._sizes.n_units)))
        return self._rate(began)

    def read(self) -> float:
        """Bytes per second; every block, in random order."""
        order = self._random.sample(range(self._sizes.n_units), self._sizes.n_units)
        began = self._clocks()
        for first in range(0, len(order), self._sizes.batch):
            part = order[first : first + self._sizes.batch]
            if failures := self._store.read(self._items(part)):
                raise TenutoError(f"a block could not be read: {failures[0].message}")
        return self._rate(began)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _rate(self, began: tuple[float, float]) -> float:
        took_s, busy_s = (now - then for now, then in zip(self._clocks(), began, strict=True))
        self.cores.append(busy_s / took_s)
        return self._sizes.n_units * LAYOUT.extent_bytes / took_s

    def _clocks(self) -> tuple[float, float]:
        """The clock, and what the processor worked for this process."""
        return time.perf_counter(), time.process_time()

    def _write(self, slots: range) -> None:
        if failures := self._store.write(self._items(slots)):
            raise TenutoError(f"a block could not be written: {failures[0].message}")

    def _items(self, slots: Sequence[int]) -> list[SlotIO]:
        return [SlotIO(slot, self._chain.key(slot), self._arena.slot(slot)) for slot in slots]

    def _new_blocks(self) -> None:
        """Other blocks in host memory, as the gather from a device leaves them: with headers, not sealed."""
        self._chain = HashChain(self._namespace.digest, LAYOUT.block_tokens)
        self._chain.append_bytes(self._random.randbytes(4 * LAYOUT.block_tokens * self._sizes.n_units))
        for index in range(self._sizes.n_units):
            self._codec.write_header(self._arena.slot(index), self._chain.block(index))

    def _fill(self) -> None:
        """Write every slot once, as the store grows, and wait until it has grown enough to rest."""
        n_written, deadline = 0, time.monotonic() + GROWTH_TIMEOUT_S
        spare = max(1, self._store.slots_per_file // 2)
        while n_written < self._sizes.n_units or self._store.capacity().n_slots < n_written + spare:
            there = min(self._store.capacity().n_slots, self._sizes.n_units, n_written + self._sizes.batch)
            if there > n_written:
                self._write(range(n_written, there))
                n_written = there
            elif time.monotonic() > deadline:
                raise TenutoError(f"the disk store grew to only {n_written} MiB in {GROWTH_TIMEOUT_S:.0f} s")
            else:
                time.sleep(0.01)
