"""A disk store with a small geometry, and blocks whose bytes follow from their hash."""

from __future__ import annotations

import itertools
import time
from hashlib import sha256
from pathlib import Path

import numpy as np

from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.tiers.disk import DiskSettings, DiskStore
from tenuto.tiers.disk.instance import claim
from tenuto.tiers.disk.quota import Quota
from tenuto.tiers.store import SlotIO
from tenuto.tokens import BlockHash, BlockKey, Namespace, TokenBlock

LAYOUT = ExtentLayout(32, (0, 2), (0, 2), 16, 16, Dtype.FLOAT32)
EXTENT = LAYOUT.extent_bytes
NAMESPACE = Namespace("m", "config", "weights", "float32", "float32", "none", 32, 2, 2, 16, 16)
_owners = itertools.count()


def block(number: int) -> TokenBlock:
    """Block `number` of a made-up chain."""
    digest = BlockHash(sha256(b"block %d" % number).digest()[:16])
    key = BlockKey(digest, BlockHash(b"p" * 16), BlockHash(b"q" * 16))
    return TokenBlock(key, number, np.full(32, number, "<u4").tobytes())


def payload(block_hash: bytes, layout: ExtentLayout = LAYOUT) -> bytes:
    """What the payload of a block is, by its hash."""
    seed = int.from_bytes(block_hash[:8], "little")
    return np.random.default_rng(seed).bytes(layout.payload_bytes)


class Disk:
    """One engine's disk store, an arena beside it, and short ways to use both."""

    def __init__(
        self, root: Path, *, owner: str = "", namespace: Namespace = NAMESPACE, capacity: int = 64 * EXTENT,
        file_slots: int = 4, n_arena: int = 16, n_threads: int = 2,
        layout: ExtentLayout = LAYOUT, others: tuple[Path, ...] = (), **options: object,
    ) -> None:  # fmt: skip
        self.root = root
        self.layout = layout
        self.codec = ExtentCodec(layout, namespace.digest)
        self.claim = claim(root, namespace, owner or f"engine-{next(_owners)}", 0, others=others)
        settings = DiskSettings(Quota(root, capacity, others), file_slots * layout.extent_bytes, n_threads)
        self.store = DiskStore(self.claim, self.codec, settings, **options)
        self.arena = HostArena(n_arena, layout.extent_bytes)
        self.is_closed = False

    @property
    def folder(self) -> Path:
        return self.claim.folder

    def fill(self, slot: int, number: int) -> SlotIO:
        """Block `number` in arena slot `slot` modulo its size, for store slot `slot`."""
        buffer = self.arena.slot(slot % self.arena.n_slots)
        what = block(number)
        self.codec.write_header(buffer, what)
        buffer[self.layout.header_bytes :] = payload(what.key.hash, self.layout)
        return SlotIO(slot, what.key, buffer)

    def write(self, *pairs: tuple[int, int]) -> list:
        """Write (slot, block number) pairs; the failures."""
        return self.store.write([self.fill(slot, number) for slot, number in pairs])

    def read(self, slot: int, number: int, volume: str = "") -> str:
        """ "ok" when block `number` is in `slot` with the right bytes, else the cause of the failure."""
        buffer = self.arena.slot(0)
        buffer[:] = b"\xaa" * len(buffer)
        key = block(number).key
        failures = self.store.read([SlotIO(slot, key, buffer)], volume)
        if failures:
            return failures[0].cause.value
        found = bytes(buffer[self.layout.header_bytes :])
        return "ok" if found == payload(key.hash, self.layout) else "WRONG BYTES"

    def wait_slots(self, n_slots: int) -> None:
        """Wait until the store has grown to `n_slots`."""
        wait_until(lambda: self.store.capacity().n_slots >= n_slots)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.store.close()


def wait_until(condition, timeout_s: float = 30.0) -> None:
    """Poll for something another thread does; fails the test after a generous while."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)
