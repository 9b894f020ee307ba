"""Memory of this machine, by a container's limit where it has one."""

from __future__ import annotations

import re
from pathlib import Path

from tenuto.cli.wording import size_text
from tenuto.config import parse_size
from tenuto.memory.kernelfiles import kernel_number, kernel_text
from tenuto.settings import Settings

_SETTING = "tiers.host.capacity"


def machine_memory(top: Path = Path("/")) -> tuple[int, int] | None:
    """Bytes there are and bytes that are free; None where the kernel does not say. `top`: the root folder."""
    found = dict(re.findall(r"^(\w+):\s+([0-9]{1,18}) kB", kernel_text(top / "proc/meminfo"), re.MULTILINE))
    if not found.keys() >= {"MemTotal", "MemAvailable"}:
        return None
    total, free = (int(found[key]) << 10 for key in ("MemTotal", "MemAvailable"))
    limit = kernel_number(kernel_text(top / "sys/fs/cgroup/memory.max"))
    if limit is not None:
        used = kernel_number(kernel_text(top / "sys/fs/cgroup/memory.current")) or 0
        total, free = min(total, limit), min(free, limit - used)
    return total, free


def too_much_memory(settings: Settings, top: Path = Path("/")) -> list[str]:
    """A warning where one rank's host tier is as large as all memory of this machine, or larger; else nothing."""
    capacity, memory = settings.config.tiers.host.capacity, machine_memory(top)
    if memory is None or parse_size(capacity, _SETTING) < memory[0]:
        return []
    said = f"{_SETTING}: {capacity} for each rank, and this machine has {size_text(memory[0])} in all"
    return [f"{settings.where(_SETTING)}{said}; give less, unless it is for another machine"]
