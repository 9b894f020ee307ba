"""One bound for all engines of a node, enforced before anything is written."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tenuto.errors import store_error
from tenuto.tiers.disk.instance import instances, is_alive, remove_dead, root_lock

AUTO_SHARE = 0.5
"""Of what is free or already ours."""
_KEEP_FREE = 0.02
"""Share of the file system that is never taken."""
_MANIFEST_BYTES = 4 << 20
"""Kept of the capacity for what manifests grow by between two decisions; less where that is over a sixteenth."""


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `capacity_bytes` under `root`, over all namespaces and instances."""

    root: Path
    capacity_bytes: int

    @staticmethod
    def auto(root: Path) -> Quota:
        """The default: a share of what is free or already used by tenuto. Raises `StoreError`."""
        return Quota(root, int(AUTO_SHARE * _free_or_ours(root)))

    def reachable_bytes(self) -> int:
        """The capacity, or what the disk can give us if that is less. Raises `StoreError`."""
        return min(self.capacity_bytes, _free_or_ours(self.root))

    def has_room(self, more_bytes: int, mine: Path) -> bool:
        """Whether `more_bytes` fit, after removing folders of dead engines if need be.

        Hold `root_lock` over this and the reservation. `mine` is the caller's own instance; other
        namespaces go before other instances of this one, least recently written first.
        """
        idle = sorted(
            (
                (path.parent == mine.parent, path.stat().st_mtime, path)
                for home in self.root.iterdir()
                if home.is_dir()
                for path in instances(home)
                if path != mine and not is_alive(path)
            ),
        )
        while not self._fits(more_bytes):
            if not idle:
                return False
            remove_dead(idle.pop(0)[2])
        return True

    def _fits(self, more_bytes: int) -> bool:
        disk = os.statvfs(self.root)
        free = disk.f_bavail * disk.f_frsize - _KEEP_FREE * disk.f_blocks * disk.f_frsize
        spare = min(_MANIFEST_BYTES, self.capacity_bytes // 16)
        return used_bytes(self.root) + more_bytes + spare <= self.capacity_bytes and more_bytes <= free


def _free_or_ours(root: Path) -> int:
    try:
        disk = os.statvfs(root)
    except OSError as error:
        raise store_error(error, f"look at {root}") from error
    return disk.f_bavail * disk.f_frsize + used_bytes(root)


def used_bytes(root: Path) -> int:
    """Bytes of all files under `root`; reserved space counts whole."""
    total = 0
    folders = [root]
    while folders:
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total


__all__ = ["AUTO_SHARE", "Quota", "root_lock", "used_bytes"]
