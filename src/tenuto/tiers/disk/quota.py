"""One bound for all engines of a node, enforced before anything is written."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tenuto.config import in_mib
from tenuto.errors import store_error
from tenuto.tiers.disk.instance import instances, is_alive, last_written, namespaces, remove_dead

AUTO_SHARE = 0.5
"""Of what is free or already ours."""
_KEEP_FREE = 0.02
"""Share of the file system that is never taken."""
GRACE_S = 3600.0
"""How long a dead engine's folder is kept for its restart while others could use the space."""
_MANIFEST_BYTES = 4 << 20
"""Kept of the capacity for what manifests grow by between two decisions; less where that is over a sixteenth."""


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `capacity_bytes` under `root` and the `others` of its stripe, over all namespaces and instances."""

    root: Path
    capacity_bytes: int
    others: tuple[Path, ...] = ()

    @staticmethod
    def auto(root: Path, others: tuple[Path, ...] = ()) -> Quota:
        """The default: a share of what is free or already used by tenuto. Raises `StoreError`."""
        return Quota(root, int(AUTO_SHARE * _free_or_ours((root, *others))), others)

    @property
    def folders(self) -> tuple[Path, ...]:
        """All of the stripe, or the root alone."""
        return (self.root, *self.others)

    def reachable_bytes(self) -> int:
        """The capacity, or what the disks can give us if that is less. Raises `StoreError`."""
        return min(self.capacity_bytes, _free_or_ours(self.folders))

    def has_room(self, more_bytes: int, mine: Path, *, is_needed: bool) -> bool:
        """Whether `more_bytes` fit, after removing folders of dead engines if need be.

        Hold `root_lock` over this and the reservation. `mine` is the caller's own instance. Other namespaces go before
        other instances of this one, least recently written first. What was written within the last hour may belong to
        an engine that is being restarted: it goes only if the space `is_needed`, the caller having none at all.
        """

        def fits() -> bool:
            free = _evenly(self.folders, lambda disk: disk.f_bavail - _KEEP_FREE * disk.f_blocks)
            return (
                used_bytes(*self.folders) + more_bytes + self._spare_bytes <= self.capacity_bytes and more_bytes <= free
            )

        return self._make_room(fits, mine, is_needed=is_needed)

    def why_no_room(self, more_bytes: int) -> str:
        """Why `has_room` said no to a caller that has no file yet, in one line."""
        if used_bytes(*self.folders) + more_bytes + self._spare_bytes <= self.capacity_bytes:
            return f"the disk under {self.root} is full: nothing is written until there is room; free some space"
        bound = f"{in_mib(self.capacity_bytes)} under {self.root}"
        return (
            f"tiers.disk.capacity: all of it is taken by other engines ({bound}): nothing of this one is written until "
            "there is room; give more to all of them"
        )

    def is_kept(self, mine: Path) -> bool:
        """Whether no more than the capacity is used, after removing folders of dead engines if need be."""
        return self._make_room(lambda: used_bytes(*self.folders) <= self.capacity_bytes, mine, is_needed=False)

    @property
    def most_bytes(self) -> int:
        """Of pool files, of one engine that is alone."""
        return self.capacity_bytes - self._spare_bytes

    @property
    def _spare_bytes(self) -> int:
        return min(_MANIFEST_BYTES, self.capacity_bytes // 16)

    def _make_room(self, fits: Callable[[], bool], mine: Path, *, is_needed: bool) -> bool:
        now = time.time()
        idle = sorted(
            (path.parent == mine.parent, written, path)
            for home in namespaces(self.root)
            for path in instances(home)
            if path != mine and not is_alive(path)
            for written in (last_written(path),)
            if is_needed or now - written > GRACE_S
        )
        while not fits():
            if not idle:
                return False
            remove_dead(idle.pop(0)[2], self.others)
        return True


def _free_or_ours(folders: tuple[Path, ...]) -> int:
    try:
        return int(_evenly(folders, lambda disk: disk.f_bavail)) + used_bytes(*folders)
    except OSError as error:
        raise store_error(error, f"look at {', '.join(map(str, folders))}") from error


def _evenly(folders: tuple[Path, ...], blocks: Callable[[os.statvfs_result], float]) -> float:
    """Bytes that fit when all folders get the same; those of one file system share its `blocks`."""
    n_sharing = Counter(folder.stat().st_dev for folder in folders)
    disks = {folder.stat().st_dev: os.statvfs(folder) for folder in folders}
    return min(blocks(disk) * disk.f_frsize * len(folders) / n_sharing[device] for device, disk in disks.items())


def used_bytes(*roots: Path) -> int:
    """Bytes of tenuto's files under `roots`; reserved space counts whole. Whatever else lies there is not counted."""
    total = 0
    folders = [home for root in roots for home in namespaces(root)]
    while folders:
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total
