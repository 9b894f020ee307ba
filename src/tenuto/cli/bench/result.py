"""What a measurement is worth nothing without: the machine, the versions, the day."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import re
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tenuto import __version__
from tenuto.errors import ConfigError
from tenuto.memory.kernelfiles import kernel_text

Figures = dict[str, float]

_NUMBERS = re.compile(r"\[\s*-?\d[-\d.e+,\s]*\]")


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware in words; no names of hosts or folders."""

    cpu: str
    cores: int
    memory_gib: float
    file_system: str = ""
    """Of the folder that was written to; empty where none was."""
    gpu: str = ""
    """Name of the device that was used; empty where none was."""

    @property
    def slug(self) -> str:
        """For file names: the GPU without its maker, else CPU model and cores."""
        if self.gpu:
            return "-".join(re.findall(r"[a-z0-9]+", self.gpu.lower().removeprefix("nvidia ")))
        bare = re.sub(r"\((r|tm|c)\)|@.*|\bcpu\b", " ", self.cpu.lower())
        return "-".join([*re.findall(r"[a-z0-9]+", bare), f"{self.cores}c"])


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one bench."""

    name: str
    machine: Machine
    versions: dict[str, str]
    command: str
    date: str
    figures: Figures = field(default_factory=Figures)
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    """What stands behind the figures: samples, rounds, method. Left out where there is nothing."""

    def as_json(self) -> str:
        """One object, indented, with lists of numbers on one line."""
        said = asdict(self)
        if not self.details:
            del said["details"]
        return _NUMBERS.sub(lambda found: " ".join(found[0].split()), json.dumps(said, indent=2))

    def save(self, folder: Path, picture: str = "", *, is_quick: bool = False) -> Path:
        """Keep it as NAME-HOST.json, and a picture as NAME-HOST.svg; the former. One that is quick is named so.

        Raises `ConfigError` when that can't be written.
        """
        path = folder / f"{self.name}-{self.machine.slug}{'-quick' if is_quick else ''}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(self.as_json() + "\n")
            if picture:
                path.with_suffix(".svg").write_text(picture, "utf-8")
        except OSError as error:
            raise ConfigError(f"--out: can't write {path} ({error.strerror}); give another folder") from None
        return path


def check_out(folder: Path) -> None:
    """Make the folder for results. Raises `ConfigError` where none can be written, before anything was measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"--out: can't write to {folder} ({error.strerror}); give another folder") from None


def describe_machine(file_system: str = "", gpu: str = "") -> Machine:
    """This machine, and the GPU of it that was used."""
    match = re.search(r"^model name\s*:\s*(.+)$", kernel_text(Path("/proc/cpuinfo")), re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=match[1].strip() if match else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory / 2**30, 1),
        file_system=file_system,
        gpu=gpu,
    )


def describe_versions() -> dict[str, str]:
    """What ran."""
    return {
        "tenuto": __version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "xxhash": version("xxhash"),
        "kernel": platform.release(),
    }


def today() -> str:
    """The date, UTC."""
    return dt.datetime.now(dt.UTC).date().isoformat()
