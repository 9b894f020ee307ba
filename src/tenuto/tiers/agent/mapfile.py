"""What an agent keeps on disk, beside its home volume's manifest: its volumes, and which slot is where."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tenuto.errors import Cause, StoreError
from tenuto.tiers.agent.bindings import At
from tenuto.tiers.disk.instance import is_network
from tenuto.tiers.disk.manifest import mapped

logger = logging.getLogger(__name__)

NAME = "volumes.sqlite"
LISTINGS = "volumes"
"""The folder, in a rank's folder, of what object stores hold."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS volumes(
    name TEXT PRIMARY KEY, url TEXT NOT NULL, capacity_bytes INTEGER NOT NULL, owner TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS slots(slot INTEGER PRIMARY KEY, volume TEXT NOT NULL, place INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """A volume as it was registered; `owner` is what its folder is found by."""

    name: str
    url: str
    capacity_bytes: int
    owner: str


class MapFile:
    """One connection, used under the agent's lock. Errors are `StoreError`. Made when it is first written to."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._db: sqlite3.Connection | None = None
        if self._path.exists():
            try:
                self._open()
                self.slots()
            except StoreError as error:
                if error.cause is not Cause.CORRUPT:
                    raise
                self.close()
                logger.warning("tenuto: %s is damaged (%s): its volumes are forgotten", self._path, error)
                for path in folder.glob(f"{NAME}*"):
                    path.unlink()

    def volumes(self) -> list[Listed]:
        """Those that were registered."""
        if self._db is None:
            return []
        with mapped("volumes"):
            rows = self._db.execute("SELECT name, url, capacity_bytes, owner FROM volumes ORDER BY name").fetchall()
        return [Listed(str(name), str(url), int(capacity), str(owner)) for name, url, capacity, owner in rows]

    def slots(self) -> dict[int, At]:
        """Where slots are that are not at home by their number."""
        if self._db is None:
            return {}
        with mapped("slots"):
            rows = self._db.execute("SELECT slot, volume, place FROM slots").fetchall()
        if not all(isinstance(slot, int) and isinstance(place, int) and place >= 0 for slot, _, place in rows):
            raise StoreError(Cause.CORRUPT, f"{NAME}: a row of none of ours")
        return {slot: At(str(volume), place) for slot, volume, place in rows}

    def add(self, volume: Listed) -> None:
        """Keep a volume."""
        row = (volume.name, volume.url, volume.capacity_bytes, volume.owner)
        self._write([("INSERT OR REPLACE INTO volumes VALUES (?, ?, ?, ?)", [row])])

    def remove(self, name: str) -> None:
        """Forget a volume, and the slots in it."""
        self._write([
            ("DELETE FROM volumes WHERE name = ?", [(name,)]),
            ("DELETE FROM slots WHERE volume = ?", [(name,)]),
        ])  # fmt: skip

    def change(self, bound: Mapping[int, At], unbound: Iterable[int] = ()) -> None:
        """Slots that are elsewhere from now on, and those that are bound to nothing any more."""
        gone = [(slot,) for slot in unbound]
        if not bound and (not gone or self._db is None):
            return
        self._write([
            ("DELETE FROM slots WHERE slot = ?", gone),
            ("INSERT OR REPLACE INTO slots VALUES (?, ?, ?)", [(slot, *at) for slot, at in bound.items()]),
        ])  # fmt: skip

    def keep_only(self, bound: Mapping[int, At]) -> None:
        """These slots are elsewhere, and no others."""
        if self._db is not None:
            self._write([
                ("DELETE FROM slots", [()]),
                ("INSERT INTO slots VALUES (?, ?, ?)", [(slot, *at) for slot, at in bound.items()]),
            ])  # fmt: skip

    def close(self) -> None:
        """Close the connection."""
        db, self._db = self._db, None
        if db is not None:
            with mapped("close volumes"):
                db.close()

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            with mapped("open volumes"):
                db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=10)
                self._db = db
                db.execute(f"PRAGMA journal_mode={'DELETE' if is_network(self._path.parent) else 'WAL'}")
                db.execute("PRAGMA synchronous=NORMAL")
                db.executescript(_SCHEMA)
        return self._db

    def _write(self, statements: Sequence[tuple[str, Sequence[tuple[object, ...]]]]) -> None:
        db = self._open()
        with mapped("write volumes"):
            db.execute("BEGIN IMMEDIATE")
            try:
                for statement, rows in statements:
                    db.executemany(statement, rows)
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
