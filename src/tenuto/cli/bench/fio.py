"""What the disk itself can do, by fio: the yardstick."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Literal

import msgspec

from tenuto.errors import ConfigError, TenutoError

PACKAGE = "fio"
QUEUE_DEPTH = 8


class _Side(msgspec.Struct):
    bw_bytes: float = 0.0


class _Job(msgspec.Struct):
    error: int
    read: _Side
    write: _Side


class _Output(msgspec.Struct):
    jobs: list[_Job]


def find_fio() -> str:
    """The program. Raises `ConfigError` naming the package when it is missing."""
    found = shutil.which("fio")
    if found is None:
        raise ConfigError(f"fio is missing, the yardstick of this bench; `apt-get install {PACKAGE}` brings it")
    return found


def fio_version(program: str) -> str:
    """As it calls itself, e.g. 3.33."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return said.strip().removeprefix("fio-")


def run_fio(program: str, file: Path, n_bytes: int, rw: Literal["write", "randread"], engine: str = "libaio") -> float:
    """Bytes per second of one pass over `file` in 1 MiB units, O_DIRECT, queue depth 8."""
    command = [program, "--name=tenuto", f"--filename={file}", f"--size={n_bytes}", f"--rw={rw}", "--bs=1m",
               "--direct=1", f"--ioengine={engine}", f"--iodepth={QUEUE_DEPTH}", "--fallocate=none",
               "--randrepeat=0", "--output-format=json"]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    complaint = (run.stderr.strip() or run.stdout.strip() or f"exit code {run.returncode}").splitlines()[-1]
    try:
        job = msgspec.json.decode(run.stdout[run.stdout.index("{") :], type=_Output).jobs[0]
    except (ValueError, msgspec.DecodeError, IndexError):
        raise TenutoError(f"fio ({engine}) failed: {complaint}") from None
    if run.returncode or job.error:
        raise TenutoError(f"fio ({engine}) failed: {complaint}")
    return (job.write if rw == "write" else job.read).bw_bytes
