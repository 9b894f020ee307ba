"""The disk that the tier would lie on: file system, room, direct I/O, and measured rates."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tenuto.cli.doctor.finding import Finding, fail, ok, warn
from tenuto.cli.wording import printable, size_text
from tenuto.errors import StoreError
from tenuto.memory.arena import HostArena
from tenuto.tiers.disk.files import error_of
from tenuto.tiers.disk.instance import is_network
from tenuto.tiers.disk.quota import AUTO_SHARE, Quota
from tenuto.tiers.disk.runtime import IoRequest, Memory, Op, RuntimeSettings, run_devices
from tenuto.tiers.disk.runtime.direct import DirectFiles
from tenuto.tiers.disk.runtime.stripeset import faults_of, read_place

UNIT = 1 << 20
BATCH = 64
"""Units on their way at once; the threads take them one by one."""
SCRATCH_BYTES = 1 << 30
LEAST_SCRATCH_BYTES = 16 * UNIT
LEAST_FREE_BYTES, SMALL_FREE_BYTES = 1 << 30, 10 << 30
SLOW = 500e6
"""Bytes per second of a SATA SSD; below, a small model may compute a prompt sooner than it is read."""

Begin = Callable[[str, int], None]
Moved = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Rates:
    """What a scratch file of `n_bytes` was written and read with, in bytes per second."""

    n_bytes: int
    is_direct: bool
    write: float
    read: float
    is_queued: bool = False
    """Whether the kernel's queue moved it, and not threads."""

    @property
    def how(self) -> str:
        """What moved it."""
        way = "direct I/O" if self.is_direct else "buffered I/O"
        return f"{way} by {'kernel AIO' if self.is_queued else 'threads'}"


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists: where the tier's folder would be made."""
    return next(folder for folder in (path, *path.parents) if os.access(folder, os.F_OK))


def check_file_system(folder: Path, kind: str, *, is_remote: Callable[[Path], bool] = is_network) -> Finding:
    """Whether blocks lie on a local disk that stays. `kind`: as the kernel names it."""
    text = f"{printable(str(folder))} is on {kind}"
    fix = "choose a folder on a local disk (tiers.disk.path)"
    if kind.startswith("fuse"):
        return warn("file system", f"{text}, served by a program (FUSE): slower", fix)
    if is_remote(folder):
        return warn("file system", f"{text}, over a network: slower, and not to be shared by machines", fix)
    if kind in ("tmpfs", "ramfs"):
        return warn("file system", f"{text}, which is memory and ends with the machine", fix)
    if kind in ("overlay", "aufs"):
        return warn("file system", f"{text}: it ends with the container", f"{fix}, as a volume of the container")
    return ok("file system", text)


def check_space(folder: Path, free: int, ours: int = 0) -> Finding:
    """Room for a disk tier of the default capacity. `free`, and `ours` already: bytes."""
    text = f'{size_text(free)} free; capacity "auto" is {size_text(int(AUTO_SHARE * (free + ours)))}'
    fix = f"free some of {printable(str(folder))}, or choose a folder on another disk (tiers.disk.path)"
    if free < LEAST_FREE_BYTES:
        return fail("space", f"only {text}", fix)
    return warn("space", text, fix) if free < SMALL_FREE_BYTES else ok("space", text)


def check_stripes(folder: Path) -> list[Finding]:
    """The folders that a root is striped over, by its note; nothing for one that is not."""
    try:
        place = read_place(folder)
    except StoreError as error:
        return [fail("stripes", printable(str(error)), "empty all folders of the stripe, or choose others")]
    if place is None:
        return []
    if place.index:
        what = f"this is folder {place.index + 1} of a stripe"
        return [fail("stripes", what, f"give the first, {printable(place.folders[0])}, as tiers.disk.path")]
    if faults := faults_of(place):
        fix = "mount its disk, or empty all folders of the stripe; until then the disk tier is off"
        return [fail("stripes", printable(fault), fix) for fault in faults]
    others = tuple(Path(name) for name in place.folders[1:])
    n_devices = len({path.stat().st_dev for path in (folder, *others)})
    systems = "1 file system" if n_devices == 1 else f"{n_devices} file systems"
    capacity = size_text(Quota.auto(folder, others).capacity_bytes)
    text = f'{1 + len(others)} folders on {systems}; capacity "auto" is {capacity} over all of them'
    if n_devices <= len(others):
        return [warn("stripes", text, "give one folder on each disk: stripes on one disk are no faster")]
    return [ok("stripes", text)]


def judge(rates: Rates) -> list[Finding]:
    """Direct I/O, and whether reading is worth it."""
    of = f"(1 MiB units, {rates.how}, {size_text(rates.n_bytes)})"
    fix = "choose a folder on an SSD (tiers.disk.path): a small model may compute a prompt sooner than it is read"
    findings = [
        ok("direct I/O", f"works, by {'kernel AIO' if rates.is_queued else 'threads'}")
        if rates.is_direct
        else warn(
            "direct I/O",
            "this file system has none: blocks go through the page cache, and take its memory",
            "choose a folder on ext4 or xfs (tiers.disk.path)",
        )
    ]
    for name, rate in (("disk write", rates.write), ("disk read", rates.read)):
        text = f"{rate / 1e9:.2f} GB/s {of}"
        findings.append(warn(name, text, fix) if rate < SLOW else ok(name, text))
    return findings


def examine_disk(folder: Path, free: int, begin: Begin, moved: Moved) -> tuple[list[Finding], Rates | None]:
    """Measure in `folder` and judge; no rates where that can't be done."""
    n_bytes = min(SCRATCH_BYTES, free // 10) // UNIT * UNIT
    if n_bytes < LEAST_SCRATCH_BYTES:
        return [fail("disk rates", "no room to measure", "free some space, or give another folder with --path")], None
    try:
        scratch = Path(tempfile.mkdtemp(prefix="tenuto-doctor-", dir=folder))
    except OSError as error:
        what = f"can't write to {printable(str(folder))} ({error.strerror})"
        return [
            fail("disk rates", what, "give this user the right to write there, or another folder with --path")
        ], None
    try:
        rates = measure(DirectFiles(scratch), n_bytes, begin, moved)
    except StoreError as error:
        what = f"{printable(str(folder))} does not hold what is written: {error}"
        return [fail("disk rates", what, "repair the disk, or give another folder with --path")], None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return judge(rates), rates


def measure(files: DirectFiles, n_bytes: int, begin: Begin, moved: Moved) -> Rates:
    """Write a file as the disk tier does, into space that was written before, and read it; closes `files`.

    `n_bytes` is a multiple of `UNIT`. Raises `StoreError`.
    """
    arena = HostArena(BATCH, UNIT)
    random = Random(0)  # bytes that do not compress
    for slot in range(BATCH):
        arena.slot(slot)[:] = random.randbytes(UNIT)
    with closing(run_devices("file", [files], RuntimeSettings())) as runtime:
        region = runtime.register_memory(Memory.of(arena.view))
        runtime.reserve("scratch", n_bytes)
        (file,) = runtime.open_batch(["scratch"])

        def go_through(what: str, op: Op) -> float:
            begin(what, n_bytes)
            began = time.perf_counter()
            for first in range(0, n_bytes, BATCH * UNIT):
                offsets = range(first, min(first + BATCH * UNIT, n_bytes), UNIT)
                items = [IoRequest(op, file, at, region, index * UNIT, UNIT) for index, at in enumerate(offsets)]
                for state in runtime.wait(runtime.submit(items)):
                    if (error := error_of(state, UNIT)) is not None:
                        raise error
                moved(len(items) * UNIT)
            return n_bytes / (time.perf_counter() - began)

        go_through("disk: prepare", Op.WRITE)
        write = go_through("disk: write", Op.WRITE)
        read = go_through("disk: read", Op.READ)
        return Rates(n_bytes, files.is_direct, write, read, runtime.caps.is_queued)
