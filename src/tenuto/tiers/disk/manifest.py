"""The manifest: which blocks the slots of one rank hold. SQLite; the schema is in docs/format.md."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tenuto.errors import Cause, StoreError
from tenuto.tokens import BlockHash, BlockKey
from tenuto.tokens.chain import HASH_BYTES

NAME = "manifest.sqlite"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files(number INTEGER PRIMARY KEY, n_slots INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS blocks(
    slot INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, parent BLOB NOT NULL, prefix BLOB NOT NULL,
    epoch INTEGER NOT NULL, stamp INTEGER NOT NULL);
"""


_CAUSES = {
    "SQLITE_FULL": Cause.NO_SPACE,
    "SQLITE_CORRUPT": Cause.CORRUPT,
    "SQLITE_NOTADB": Cause.CORRUPT,
    "SQLITE_ERROR": Cause.CORRUPT,  # another schema than ours
    "SQLITE_MISMATCH": Cause.CORRUPT,
}
_LAST_STAMP = 1 << 62
_LAST_SLOT = (1 << 63) - 1


@contextmanager
def mapped(what: str) -> Generator[None]:
    """Map SQLite's errors to `StoreError`; the only place that sees them."""
    try:
        yield
    except sqlite3.Error as error:
        cause = _CAUSES.get(getattr(error, "sqlite_errorname", ""), Cause.IO_ERROR)
        raise StoreError(cause, f"manifest: {what}: {error}") from error


class Manifest:
    """One connection, used by any thread under a lock; each method is one transaction."""

    def __init__(self, folder: Path, *, is_network: bool = False) -> None:
        self._lock = threading.Lock()
        self.n_blocks = 0
        """Listed blocks; read it without a lock."""
        self.epoch = 0
        """The epoch that blocks are listed under; set it without a lock, then delete the others."""
        with mapped("open"):
            self._db = sqlite3.connect(folder / NAME, isolation_level=None, check_same_thread=False, timeout=10)
            self._db.execute(f"PRAGMA journal_mode={'DELETE' if is_network else 'WAL'}")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA wal_autocheckpoint=250")  # pages: keeps the log near 1 MiB
            self._db.executescript(_SCHEMA)
            count = "SELECT coalesce(max(stamp), 0), count(*) FROM blocks"
            (state,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            self._stamp, self.n_blocks = self._db.execute(count).fetchone()
        if state != "ok" or not isinstance(self._stamp, int) or self._stamp > _LAST_STAMP:
            self._db.close()
            raise StoreError(Cause.CORRUPT, f"manifest: {state if state != 'ok' else 'a stamp of none of ours'}")

    def meta(self) -> dict[str, str]:
        """What the folder was made for."""
        with self._reading("meta") as db:
            return dict(db.execute("SELECT key, value FROM meta"))

    def restart(self, meta: dict[str, str]) -> None:
        """Forget everything; the folder is for `meta` now."""
        with self._writing("restart") as db:
            for table in ("blocks", "files", "meta"):
                db.execute(f"DELETE FROM {table}")
            self.n_blocks = 0
            db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())

    def files(self) -> dict[int, int]:
        """Slots of each listed file."""
        with self._reading("files") as db:
            return file_counts(db.execute("SELECT number, n_slots FROM files"))

    def add_file(self, number: int, n_slots: int) -> None:
        """List a file whose slots are all pre-written."""
        with self._writing("add file") as db:
            db.execute("INSERT INTO files VALUES (?, ?)", (number, n_slots))

    def drop_file(self, number: int, slots: range) -> None:
        """Unlist a file and what its slots hold."""
        with self._writing("drop file") as db:
            db.execute("DELETE FROM files WHERE number = ?", (number,))
            where = (slots.start, slots.stop)
            n_deleted = db.execute("DELETE FROM blocks WHERE slot >= ? AND slot < ?", where).rowcount
            self.n_blocks -= n_deleted

    def insert(self, entries: Iterable[tuple[int, BlockKey]], epoch: int) -> None:
        """List blocks whose extents are whole; the same block in another slot is unlisted.

        Nothing is listed when `epoch` has passed meanwhile.
        """
        with self._writing("insert") as db:
            if epoch != self.epoch:
                return
            rows: list[tuple[object, ...]] = []
            for slot, key in entries:
                self._stamp = max(self._stamp + 1, time.time_ns())
                rows.append((slot, *key, epoch, self._stamp))
            hashes = [(row[1],) for row in rows]
            n_moved = db.executemany("DELETE FROM blocks WHERE hash = ?", hashes).rowcount
            db.executemany("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?)", rows)
            self.n_blocks += len(rows) - n_moved

    def delete(self, slots: Sequence[int]) -> None:
        """Unlist what these slots hold."""
        with self._writing("delete") as db:
            where = [(slot,) for slot in slots]
            n_deleted = db.executemany("DELETE FROM blocks WHERE slot = ?", where).rowcount
            self.n_blocks -= n_deleted

    def delete_other_epochs(self, epoch: int) -> None:
        """Unlist the blocks of other epochs than this."""
        with self._writing("delete epochs") as db:
            n_deleted = db.execute("DELETE FROM blocks WHERE epoch IS NOT ?", (epoch,)).rowcount
            self.n_blocks -= n_deleted

    def blocks(self) -> list[tuple[int, BlockKey]]:
        """(slot, key) of every block, oldest first."""
        with self._reading("blocks") as db:
            rows = db.execute("SELECT slot, hash, parent, prefix FROM blocks ORDER BY stamp")
            return [entry_of(*row) for row in rows]

    def stamps(self) -> dict[int, int]:
        """The stamp of the block in each slot."""
        with self._reading("stamps") as db:
            return dict(db.execute("SELECT slot, stamp FROM blocks"))

    def find(self, hashes: Iterable[BlockHash]) -> dict[BlockHash, tuple[int, BlockKey]]:
        """(slot, key) of those of these blocks that are listed."""
        found: dict[BlockHash, tuple[int, BlockKey]] = {}
        with self._reading("find") as db:
            for block in hashes:
                row = db.execute("SELECT slot, hash, parent, prefix FROM blocks WHERE hash = ?", (block,)).fetchone()
                if row is not None:
                    found[block] = entry_of(*row)
        return found

    def blocks_from(self, slot: int, most: int, below: int | None = None) -> list[tuple[int, BlockKey]]:
        """(slot, key) of up to `most` blocks from `slot` up to `below`, the last first."""
        with self._reading("blocks from") as db:
            rows = db.execute(
                "SELECT slot, hash, parent, prefix FROM blocks WHERE slot >= ? AND slot < ? ORDER BY slot DESC LIMIT ?",
                (slot, _LAST_SLOT if below is None else below, most),
            )
            return [entry_of(*row) for row in rows]

    def cut_file(self, number: int, n_slots: int) -> None:
        """A listed file has fewer slots from now on; those that go hold nothing."""
        with self._writing("cut file") as db:
            db.execute("UPDATE files SET n_slots = ? WHERE number = ?", (n_slots, number))

    def close(self) -> None:
        """Close the connection."""
        with self._lock, mapped("close"):
            self._db.close()

    @contextmanager
    def _reading(self, what: str) -> Generator[sqlite3.Connection]:
        with self._lock, mapped(what):
            yield self._db

    @contextmanager
    def _writing(self, what: str) -> Generator[sqlite3.Connection]:
        with self._lock, mapped(what):
            self._db.execute("BEGIN IMMEDIATE")
            n_blocks = self.n_blocks
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                self.n_blocks = n_blocks
                if self._db.in_transaction:  # a full disk may have rolled it back already
                    self._db.execute("ROLLBACK")
                raise


class PeerManifest:
    """Another process's manifest, read only: what is new since the last look."""

    def __init__(self, folder: Path) -> None:
        with mapped("open a peer's"):
            uri = f"file:{quote(str(folder / NAME))}?mode=ro"
            self._db = sqlite3.connect(uri, uri=True, check_same_thread=False, timeout=2)
        self._stamp = 0

    def meta(self) -> dict[str, str]:
        """What the folder was made for."""
        with mapped("a peer's meta"):
            return dict(self._db.execute("SELECT key, value FROM meta"))

    def files(self) -> dict[int, int]:
        """Slots of each listed file."""
        with mapped("a peer's files"):
            return file_counts(self._db.execute("SELECT number, n_slots FROM files"))

    def news(self) -> list[tuple[int, BlockKey]]:
        """(slot, key) of blocks listed since the last call."""
        with mapped("a peer's blocks"):
            rows = self._db.execute(
                "SELECT stamp, slot, hash, parent, prefix FROM blocks WHERE stamp > ? AND epoch = 0 ORDER BY stamp",
                (self._stamp,),
            ).fetchall()
        if rows:
            self._stamp = rows[-1][0]
        return [entry_of(*row[1:]) for row in rows]

    def close(self) -> None:
        """Close the connection."""
        with mapped("close a peer's"):
            self._db.close()


def entry_of(slot: object, *key: object) -> tuple[int, BlockKey]:
    """(slot, key) of a row of blocks: hash, parent, prefix. SQLite keeps whatever somebody else put there.

    Raises `StoreError` (CORRUPT).
    """
    hashes = [BlockHash(part) for part in key if isinstance(part, bytes) and len(part) == HASH_BYTES]
    if not isinstance(slot, int) or slot < 0 or len(hashes) != len(key):
        raise StoreError(Cause.CORRUPT, f"manifest: the row of slot {slot!r} is none of ours")
    return slot, BlockKey(*hashes)


def file_counts(rows: Iterable[tuple[object, object]]) -> dict[int, int]:
    """Slots of each file, by the rows of files. Raises `StoreError` (CORRUPT)."""
    files: dict[int, int] = {}
    for number, n_slots in rows:
        if not isinstance(number, int) or not isinstance(n_slots, int) or n_slots < 1:
            raise StoreError(Cause.CORRUPT, "manifest: the list of pool files is none of ours")
        files[number] = n_slots
    return files
