"""A disk tier in one SQLite file, in the place of tenuto's pool files."""

import sqlite3
import threading
import time

from tenuto.errors import Cause, StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.store import OWN, Capacity, Failure
from tenuto.tokens import BlockKey


class SqliteStore:
    """See `tenuto.tiers.store.Store`; `tiers.disk.store = "sqlite_store:SqliteStore"` uses it."""

    def __init__(self, folder, codec, capacity_bytes):
        self._codec, self._n_slots = codec, capacity_bytes // codec.layout.extent_bytes
        self._lock, self._epoch, self._parts = threading.RLock(), 0, {}
        self._db = sqlite3.connect(folder / "extents.sqlite", check_same_thread=False)
        columns = "slot INTEGER PRIMARY KEY, hash, parent, prefix, epoch, stamp, extent"
        self._db.execute(f"CREATE TABLE IF NOT EXISTS extents ({columns})")
        self._db.execute("DELETE FROM extents WHERE epoch <> 0")  # from behind a reset, in an earlier life
        rows = self._db.execute("SELECT slot, hash, parent, prefix FROM extents ORDER BY stamp")
        self.recovered = [(slot, BlockKey(*key)) for slot, *key in rows]

    def capacity(self):
        return Capacity(self._n_slots, is_growing=False)

    def write(self, items):
        return self.write_layers(items, (0, self._codec.layout.n_layers)) or self.commit(items)

    def write_layers(self, items, layers):
        span = slice(*(self._codec.layout.header_bytes + at * self._codec.layout.segment_bytes for at in layers))
        if layers[0] == 0:
            self.forget([item.slot for item in items])
            self._parts.update((item.slot, bytearray(len(item.buffer))) for item in items)
        for item in items:
            self._parts[item.slot][span] = item.buffer[span]
        return []

    def commit(self, items):
        with self._lock, self._db:
            for item in items:
                self._codec.seal(item.buffer)
                part = self._parts.pop(item.slot)
                part[: self._codec.layout.header_bytes] = item.buffer[: self._codec.layout.header_bytes]
                row = (item.slot, *item.key, self._epoch, time.time_ns(), part)
                self._db.execute("INSERT OR REPLACE INTO extents VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return []

    def read(self, items, volume=OWN, layers=None):
        return [failure for at, item in enumerate(items) if (failure := self._read(at, item, volume, layers))]

    def _read(self, at, item, volume, layers):
        first, last = layers or (0, self._codec.layout.n_layers)
        with self._lock:
            row = self._db.execute("SELECT extent FROM extents WHERE slot = ?", (item.slot,)).fetchone()
        if row is None or volume != OWN or len(row[0]) != len(item.buffer):
            return Failure(at, Cause.MISSING, f"nothing in slot {item.slot}")
        start, stop = (self._codec.layout.header_bytes + at * self._codec.layout.segment_bytes for at in (first, last))
        item.buffer[start * bool(first) : stop] = row[0][start * bool(first) : stop]  # the header with layer 0
        try:
            self._codec.verify_header(item.buffer, item.key.hash)
            self._codec.verify_layers(item.buffer, (first, last))
        except StoreError as error:
            return Failure(at, error.cause, str(error))
        return None

    def forget(self, slots):
        with self._lock, self._db:
            self._db.executemany("DELETE FROM extents WHERE slot = ?", [(slot,) for slot in slots])

    def reset(self, namespace, epoch):
        self._codec, self._epoch = ExtentCodec(self._codec.layout, namespace), epoch
        with self._lock, self._db:
            self._db.execute("DELETE FROM extents")

    def close(self):
        self._db.close()
