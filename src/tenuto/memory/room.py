"""How much memory this process can still touch before the kernel ends one.

`top` is the root folder, so that a test can have a kernel of its own. Sources: proc_meminfo(5), the kernel's
cgroup-v2 and cgroup-v1/memory documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tenuto.memory.kernelfiles import kernel_number, kernel_text

_MEM_AVAILABLE = re.compile(r"^MemAvailable:\s+([0-9]{1,18}) kB", re.MULTILINE)
_V2 = ("memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable"))
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that is free or can be freed at once, and whose bound it is."""

    free_bytes: int
    is_container: bool = False
    """Whether a container's limit is what is nearest, not the machine's memory."""


def free_memory(top: Path = Path("/")) -> Room:
    """The machine's free memory, or what a cgroup of this process, or one around it, still allows when that is less.

    File pages count as free: the kernel drops them first.
    """
    found = _MEM_AVAILABLE.search(kernel_text(top / "proc/meminfo"))
    rooms = [Room(int(found[1]) << 10)] if found else [Room(1 << 62)]
    rooms += [Room(left, is_container=True) for left in _left_in_cgroups(top)]
    return min(rooms, key=lambda room: room.free_bytes)


def _left_in_cgroups(top: Path) -> Iterator[int]:
    for line in kernel_text(top / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not path or (controllers and "memory" not in controllers.split(",")):
            continue
        root = top / "sys/fs/cgroup" / ("memory" if controllers else "")
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root):
                yield from _left_in(group, *(_V1 if controllers else _V2))


def _left_in(group: Path, limit_name: str, used_name: str, reclaimable: tuple[str, ...]) -> Iterator[int]:
    limit, used = (kernel_number(kernel_text(group / name)) for name in (limit_name, used_name))
    if limit is not None and used is not None:  # "max": none
        rows = [line.split() for line in kernel_text(group / "memory.stat").splitlines()]
        stat = {row[0]: kernel_number(row[1]) or 0 for row in rows if len(row) == 2}
        yield limit - used + sum(stat.get(name, 0) for name in reclaimable)
