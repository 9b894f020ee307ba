"""What other engines of this node hold of our namespace: read only, found by polling their manifests."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk.files import PoolFiles
from tenuto.tiers.disk.instance import instances
from tenuto.tiers.disk.manifest import NAME, PeerManifest
from tenuto.tiers.disk.runtime import StorageRuntime
from tenuto.tiers.disk.slotmap import SlotMap
from tenuto.tokens import BlockKey

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Peer:
    """One other instance's rank folder."""

    manifest: PeerManifest
    files: PoolFiles
    inode: int
    slots: SlotMap


@dataclass(slots=True)
class Peers:
    """Instances of `home` other than `mine`, with the same rank and geometry (`meta`); `runtime` has its root there."""

    runtime: StorageRuntime
    home: Path
    mine: str
    rank: int
    meta: dict[str, str]
    _open: dict[str, _Peer] = field(default_factory=dict[str, _Peer])

    def news(self) -> dict[str, list[tuple[int, BlockKey]]]:
        """Blocks that appeared since the last call, by instance; deletions show when they are read."""
        found: dict[str, list[tuple[int, BlockKey]]] = {}
        try:
            folders = instances(self.home)
        except OSError as error:
            logger.debug("%s can't be listed now: %s", self.home, error)
            return found
        for folder in folders:
            name = folder.name
            if name == self.mine:
                continue
            try:
                peer = self._peer(name, folder / f"rank-{self.rank}")
                fresh = peer.manifest.news() if peer else []
                if peer and any(slot >= peer.slots.n_slots for slot, _ in fresh):
                    peer.slots = SlotMap(peer.manifest.files())
            except (StoreError, OSError) as error:
                logger.debug("instance %s can't be read now: %s", name, error)
                self._drop(name)
                continue
            if fresh:
                found[name] = fresh
        return found

    def place(self, instance: str, slot: int) -> tuple[PoolFiles, int, int]:
        """Where a slot of an instance lies: its files, file number, index in the file. Raises `StoreError`."""
        peer = self._open.get(instance)
        if peer is None:
            raise StoreError(Cause.MISSING, f"instance {instance} is gone")
        return peer.files, *peer.slots.place(slot)

    def close(self) -> None:
        """Close every peer."""
        for name in list(self._open):
            self._drop(name)

    def _peer(self, name: str, folder: Path) -> _Peer | None:
        try:
            inode = (folder / NAME).stat().st_ino
        except FileNotFoundError:
            self._drop(name)
            return None
        known = self._open.get(name)
        if known and known.inode == inode:
            return known
        self._drop(name)
        manifest = PeerManifest(folder)
        if manifest.meta() != self.meta:
            manifest.close()
            return None
        files = PoolFiles(self.runtime, f"{name}/{folder.name}", is_writable=False)
        peer = _Peer(manifest, files, inode, SlotMap(manifest.files()))
        self._open[name] = peer
        return peer

    def _drop(self, name: str) -> None:
        peer = self._open.pop(name, None)
        if peer:
            with suppress(StoreError):
                peer.manifest.close()
            peer.files.close()
