"""Which rank folders a living engine holds, told without touching their locks.

Trying a lock would hold it for a moment, and an engine that starts in that moment would be refused its folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import Path

from tenuto.tiers.disk.instance import mount_of

Inode = tuple[int, int, int]
"""(major, minor, inode number)"""

KERNEL_LOCKS = Path("/proc/locks")
_FILE = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,8}):([0-9]{1,20})")


class Holder(Enum):
    """Whether an engine runs on a folder. Engines of other containers and machines are not seen."""

    LIVING = "living"
    DEAD = "dead"
    UNKNOWN = "unknown"  # the kernel does not say


def parse_locks(text: str) -> frozenset[Inode]:
    """The files that somebody has an exclusive flock on, by the text of /proc/locks."""
    held: set[Inode] = set()
    for line in text.splitlines():
        _, kind, _, access, _, file, *_ = [*line.split(), *[""] * 6]  # a waiting process has "->" for its kind
        device = _FILE.fullmatch(file)
        if kind == "FLOCK" and access == "WRITE" and device:
            held.add((int(device[1], 16), int(device[2], 16), int(device[3])))
    return frozenset(held)


def held_files() -> frozenset[Inode] | None:
    """The same, of this machine now; None when the kernel does not say."""
    try:
        return parse_locks(KERNEL_LOCKS.read_text("utf-8", "replace"))
    except OSError:
        return None


def holder_of(lock: Path, held: AbstractSet[Inode] | None) -> Holder:
    """Who holds this lock file."""
    if held is None:
        return Holder.UNKNOWN
    try:
        stat = lock.stat()
    except FileNotFoundError:
        return Holder.DEAD
    devices = {(os.major(stat.st_dev), os.minor(stat.st_dev)), mount_of(lock).device}  # they differ on btrfs
    return Holder.LIVING if any((*device, stat.st_ino) in held for device in devices) else Holder.DEAD
