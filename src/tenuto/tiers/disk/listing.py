"""A manifest read without a trace: nothing is written beside it, and no lock is taken that its owner waits for long.

For looking into a folder from outside, in a process that does not have it open itself (closing a file ends all of a
process's locks on it). What shares blocks with a living engine is `PeerManifest`, which leaves SQLite's shared memory
file behind.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tenuto.errors import Cause, StoreError, store_error
from tenuto.tiers.disk.manifest import NAME, entry_of, file_counts, mapped
from tenuto.tokens import FORMAT_VERSION, BlockKey

SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Of a manifest and what SQLite lays beside it."""

_ATTEMPTS = 4
_PAUSE_S = 0.05
_WAL_MODE_OFFSET = 18  # of the byte in SQLite's header that is 2 in WAL mode


@dataclass(frozen=True, slots=True)
class Row:
    """One listed block. `stamp` is in nanoseconds since 1970; `epoch` is 0 unless it was stored after a reset."""

    slot: int
    key: BlockKey
    epoch: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Listing:
    """What one manifest says: what it was made for, slots of each pool file, blocks by slot.

    Of a folder of another format nothing but `meta` is read.
    """

    meta: dict[str, str]
    files: dict[int, int]
    rows: list[Row]

    @property
    def format(self) -> str:
        """The format version, "" when it says none."""
        return self.meta.get("format", "")

    @property
    def is_readable(self) -> bool:
        """Whether it is of the format this tenuto reads."""
        return self.format == str(FORMAT_VERSION)


def read_listing(folder: Path) -> Listing:
    """What the manifest in a rank folder says now.

    Raises `StoreError`: CORRUPT when it is damaged, MISSING when there is none, IO_ERROR when it can't be read.
    An engine may start, write and end meanwhile: what is between two states is read again.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _read_once(folder / NAME)
        except StoreError as error:
            if error.cause is Cause.MISSING:
                raise
            time.sleep(_PAUSE_S)
    return _read_once(folder / NAME)


def _read_once(path: Path) -> Listing:
    try:
        before = path.stat()
        _check_plain(path)
        if not _is_wal_mode(path):
            return _read_rollback(path)
        wal, shm = Path(f"{path}-wal"), Path(f"{path}-shm")
        if wal.exists():
            return _query(path, "mode=ro&readonly_shm=1") if shm.exists() else _read_copy(path, wal)
        found = _query(path, "immutable=1")  # its last owner closed it: nobody writes, there is no log to read
        after = path.stat()
    except FileNotFoundError as error:
        raise StoreError(Cause.MISSING, f"{NAME} is gone") from error
    except OSError as error:
        raise store_error(error, f"read {NAME}") from error
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise StoreError(Cause.IO_ERROR, "manifest: written while it was read")
    return found


def _check_plain(path: Path) -> None:
    """Opening a pipe would wait for ever."""
    for part in (Path(f"{path}{suffix}") for suffix in SUFFIXES):
        if part.exists() and not part.is_file():
            raise StoreError(Cause.CORRUPT, f"{part.name} is no plain file")


def _is_wal_mode(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(_WAL_MODE_OFFSET + 1)
    return head[_WAL_MODE_OFFSET:] == b"\2"


def _read_rollback(path: Path) -> Listing:
    """With a rollback journal: beside its owner, or, where a killed one left a journal to play back, in a copy."""
    try:
        return _query(path, "mode=ro")
    except StoreError as error:
        if getattr(error.__cause__, "sqlite_errorname", "") != "SQLITE_READONLY_ROLLBACK":
            raise
    return _read_copy(path, Path(f"{path}-journal"))


def _read_copy(path: Path, log: Path) -> Listing:
    """Recover a copy, since recovering writes; nobody has the original open."""
    with tempfile.TemporaryDirectory(prefix="tenuto-manifest-") as folder:
        for source in (path, log):
            shutil.copyfile(source, Path(folder) / source.name)
        if os.path.lexists(f"{path}-shm"):
            raise StoreError(Cause.IO_ERROR, "manifest: opened while it was copied")
        return _query(Path(folder) / NAME, "mode=rw")


def _query(path: Path, options: str) -> Listing:
    """One look, in one transaction."""
    with mapped("read"), closing(_connect(path, options)) as db:
        db.execute("BEGIN")
        found = Listing(_texts(db.execute("SELECT key, value FROM meta")), {}, [])
        if not found.is_readable:
            return found
        (state,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        if state != "ok":
            raise StoreError(Cause.CORRUPT, f"manifest: {state}")
        files = file_counts(db.execute("SELECT number, n_slots FROM files"))
        rows = db.execute("SELECT slot, hash, parent, prefix, epoch, stamp FROM blocks ORDER BY slot")
        return Listing(found.meta, files, [_row(*row) for row in rows])


def _connect(path: Path, options: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?{options}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=2)


def _texts(rows: Iterable[tuple[object, object]]) -> dict[str, str]:
    meta: dict[str, str] = {}
    for key, value in rows:
        if not isinstance(key, str) or not isinstance(value, str):
            raise StoreError(Cause.CORRUPT, "manifest: what it was made for is not said in text")
        meta[key] = value
    return meta


def _row(slot: object, block: object, parent: object, prefix: object, epoch: object, stamp: object) -> Row:
    number, key = entry_of(slot, block, parent, prefix)
    if not isinstance(epoch, int) or not isinstance(stamp, int):
        raise StoreError(Cause.CORRUPT, f"manifest: the row of slot {number} is none of ours")
    return Row(number, key, epoch, stamp)
