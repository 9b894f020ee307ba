"""Claiming a folder under the disk root: one writer each, taken over when its owner is dead."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
import shutil
import string
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tenuto.errors import ConfigError, store_error
from tenuto.tiers.disk.runtime.stripeset import UNIT_BYTES, read_place, settle
from tenuto.tokens import Namespace

MOUNTS = Path("/proc/self/mountinfo")

_ROOT_LOCK_TIMEOUT_S = 30.0
_NAMESPACE = re.compile(r"[0-9a-f]{32}")
_INSTANCE = re.compile(r"[a-z]+")
_MOUNT = re.compile(rb"\S+ \S+ ([0-9]{1,9}):([0-9]{1,9}) [^ ]+ ([^ ]+) .*? - ([^ ]+)(?: .*)?", re.DOTALL)
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")  # the kernel's, for a space or backslash in a folder's name
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.EROFS)
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "beegfs", "gpfs", "afs", "ocfs2")


@dataclass(frozen=True, slots=True)
class Claim:
    """This process writes `folder` (``.../<instance>/rank-<r>``) while `lock_fd` is open.

    `others`: the further folders that its pool files are striped over, beside the root.
    """

    folder: Path
    lock_fd: int
    others: tuple[Path, ...] = ()

    @property
    def instance(self) -> Path:
        """The folder that all ranks of the engine share."""
        return self.folder.parent

    def is_there(self) -> bool:
        """Whether the folder is still where it was: what is written is found after a restart."""
        try:
            return os.path.samestat((self.folder / "lock").stat(), os.fstat(self.lock_fd))
        except OSError:
            return False

    @property
    def homes(self) -> tuple[Path, ...]:
        """The namespace's folder under the root, and that in each other folder of the stripe."""
        home = self.instance.parent
        return (home, *(other / home.name for other in self.others))


@contextmanager
def root_lock(root: Path) -> Generator[None]:
    """Hold the node's lock: claims and quota decisions happen one at a time."""
    fd = os.open(root / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        deadline = time.monotonic() + _ROOT_LOCK_TIMEOUT_S
        while not _try_lock(fd):
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"{root / 'lock'} is held by another process")
            time.sleep(0.005)
        yield
    finally:
        os.close(fd)


def claim(
    root: Path,
    namespace: Namespace,
    owner: str,
    rank: int,
    split: str = "tp1",
    others: tuple[Path, ...] = (),
    *,
    takes_over: bool = True,
) -> Claim:
    """Take a folder for rank `rank` of engine `owner`: its own, a dead engine's of the same `split`, or a new one.

    `split` says how the ranks of an engine share a block: a folder's extents are of no use to another. Pool files
    are striped over the root and `others`, which must be what they have been since the first engine. Unless it
    `takes_over`, a dead engine's folder is left alone.

    Raises `ConfigError` naming the setting when a folder can't be written, `StoreError` for a reason that may pass.
    """
    try:
        home = root / namespace.folder
        root.mkdir(parents=True, exist_ok=True)
        with root_lock(root):
            _settle(root, others)
            for folder in (home, *(other / home.name for other in others)):
                folder.mkdir(exist_ok=True)
            described = msgspec.json.format(msgspec.json.encode(namespace.describe()))
            _note(home / "namespace.json", described + b"\n")
            instance = _find(home, owner, rank, split, takes_over=takes_over) or _new(home)
            folder = instance / f"rank-{rank}"
            folder.mkdir(parents=True, exist_ok=True)
            (instance / "owner").write_text(owner)  # in place, for a full disk: cut off, it is nobody's
            _note(instance / "split", split.encode())
            fd = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            if not _try_lock(fd):
                os.close(fd)
                raise ConfigError(f"tiers.disk.path: {folder} is in use by another process")
            return Claim(folder, fd, others)
    except OSError as error:
        if error.errno in _PASSING:
            raise store_error(error, f"claim a folder under {root}") from error
        raise ConfigError(
            f"tiers.disk.path: can't write to {root} ({error.strerror or error}); "
            "choose another folder, or give this user the right to write there"
        ) from None


def namespaces(root: Path) -> list[Path]:
    """The namespace folders of a root. Whatever else lies beside them, or where links lead, is somebody else's."""
    with suppress(FileNotFoundError):
        found = [path for path in root.iterdir() if _NAMESPACE.fullmatch(path.name) and not path.is_symlink()]
        return sorted(path for path in found if path.is_dir())
    return []


def instances(home: Path) -> list[Path]:
    """The instance folders of a namespace, in name order."""
    with suppress(FileNotFoundError):
        found = [path for path in home.iterdir() if _INSTANCE.fullmatch(path.name) and not path.is_symlink()]
        return sorted((path for path in found if path.is_dir()), key=lambda path: (len(path.name), path.name))
    return []


def last_written(instance: Path) -> float:
    """When a block was last listed or unlisted there, in seconds since 1970."""
    times = [instance.stat().st_mtime]
    for path in instance.glob("rank-*/manifest.sqlite*"):
        with suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return max(times)


def is_alive(instance: Path) -> bool:
    """Whether a process holds a rank of this instance."""
    return any(_is_locked(lock) for lock in instance.glob("rank-*/lock"))


def remove_dead(instance: Path, others: tuple[Path, ...] = ()) -> None:
    """Delete a dead instance's folders, those in the other folders of a stripe first. Hold the root lock."""
    home = instance.parent
    parts = [other / home.name / instance.name for other in others]
    for folder in (*parts, instance):  # what is cut short meanwhile is still found and listed
        for rank in folder.glob("rank-*"):  # first: as long as something is left, it is said whose
            shutil.rmtree(rank, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # the namespace folder goes with its last instance
        if not instances(home):
            for part in parts:
                shutil.rmtree(part.parent, ignore_errors=True)
            shutil.rmtree(home)


def left_over(root: Path, others: tuple[Path, ...]) -> list[Path]:
    """Instance folders in the other folders of a stripe that are in the root no more."""
    return [
        part
        for other in others
        for home in namespaces(other)
        for part in instances(home)
        if not os.path.lexists(root / home.name / part.name)
    ]


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a path lies: the mount's folder, the kernel's name of its type, its device as (major, minor)."""

    folder: str
    kind: str
    device: tuple[int, int]


def mount_of(path: Path) -> Mount:
    """The mount that `path` lies on; of the kind "unknown" where the kernel does not say."""
    best = Mount("", "unknown", (0, 0))
    try:
        lines = MOUNTS.read_bytes().split(b"\n")
    except OSError:
        return best
    for line in lines:
        found = _MOUNT.fullmatch(line)
        if found is None:
            continue
        major, minor, escaped, kind = found.groups()
        folder = os.fsdecode(_ESCAPE.sub(lambda octal: bytes([int(octal[1], 8)]), escaped))
        inside = f"{path.resolve()}/".startswith(folder.rstrip("/") + "/")
        if inside and len(folder) >= len(best.folder):
            best = Mount(folder, os.fsdecode(kind), (int(major), int(minor)))
    return best


def file_system(path: Path) -> str:
    """The type of the file system `path` lies on, as the kernel names it."""
    return mount_of(path).kind


def is_network(path: Path) -> bool:
    """Whether `path` lies on a network file system, where SQLite's WAL does not work."""
    kind = file_system(path)
    return kind in _NETWORK or kind.startswith("fuse.")


def _settle(root: Path, others: tuple[Path, ...]) -> None:
    """See that the folders are used as they were before, and clear what a killed removal left. The lock is held."""
    if others:
        settle("tiers.disk.stripes", (root, *others), UNIT_BYTES, lambda folder: not namespaces(folder))
        for part in left_over(root, others):
            shutil.rmtree(part, ignore_errors=True)
    elif (place := read_place(root)) is not None:
        raise ConfigError(
            f"tiers.disk.path: {root} is folder {place.index + 1} of a stripe over {', '.join(place.folders)}; "
            "give the first as path and the others as tiers.disk.stripes, or choose another folder"
        )


def _find(home: Path, owner: str, rank: int, split: str, *, takes_over: bool) -> Path | None:
    found = [path for path in instances(home) if _read(path / "split") == split or _is_half_made(path)]
    for path in found:
        if _read(path / "owner") == owner and not _is_rank_locked(path, rank):
            return path
    return next((path for path in found if not is_alive(path) and (takes_over or _is_half_made(path))), None)


def _is_half_made(instance: Path) -> bool:
    """Whether its maker was killed before it was noted whose it is: nothing lies there yet."""
    return not _read(instance / "split") and not any(instance.glob("rank-*/manifest.sqlite"))


def _note(path: Path, data: bytes) -> None:
    """Whole or not at all, and not again: who is killed here leaves what was there."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(data)
    new.replace(path)


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""


def _new(home: Path) -> Path:
    letters = string.ascii_lowercase
    names = itertools.chain.from_iterable(
        map("".join, itertools.product(letters, repeat=n)) for n in itertools.count(1)
    )
    return next(path for name in names if not (path := home / name).exists())


def _is_rank_locked(instance: Path, rank: int) -> bool:
    return _is_locked(instance / f"rank-{rank}" / "lock")


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
