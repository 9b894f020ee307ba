"""How much memory this process can still touch before the kernel ends one.

`top` is the root folder, so that a test can have a kernel of its own. Sources: proc_meminfo(5), the kernel's
cgroup-v2 and cgroup-v1/memory documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(top / "proc/meminfo"), re.MULTILINE)
    rooms = [Room(int(found[1]) << 10)] if found else [Room(1 << 62)]
    rooms += [Room(left, is_container=True) for left in _left_in_cgroups(top)]
    return min(rooms, key=lambda room: room.free_bytes)


def _left_in_cgroups(top: Path) -> Iterator[int]:
    for line in _text(top / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = top / "sys/fs/cgroup" / ("memory" if controllers else "")
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root):
                yield from _left_in(group, *(_V1 if controllers else _V2))


def _left_in(group: Path, limit_name: str, used_name: str, reclaimable: tuple[str, ...]) -> Iterator[int]:
    limit, used = (_text(group / name).strip() for name in (limit_name, used_name))
    if limit.isdigit() and used.isdigit():  # "max": none
        stat = dict(line.split() for line in _text(group / "memory.stat").splitlines())
        yield int(limit) - int(used) + sum(int(stat.get(name, 0)) for name in reclaimable)


def _text(path: Path) -> str:
    """The text of a file of the kernel; nothing where it has no such file, or does not show it."""
    try:
        return path.read_text()
    except OSError:
        return ""
