"""Opening the disk tier of one rank, by the settings."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack

from tenuto.config import Disk, parse_size
from tenuto.errors import StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.plugins import load
from tenuto.tiers.disk.foreign import ForeignStore
from tenuto.tiers.disk.instance import claim
from tenuto.tiers.disk.store import DiskSettings, DiskStore
from tenuto.tiers.disk.volume import quota_of, volume_of
from tenuto.tiers.store import OPEN_STORE_ARGUMENTS, OpenStore, Store
from tenuto.tokens import Namespace

logger = logging.getLogger(__name__)


def load_store(spec: str) -> OpenStore:
    """The class of others that `tiers.disk.store` names. Raises `ConfigError`, one line; see `plugins.load`."""
    return load(spec, "tiers.disk.store", Store, OPEN_STORE_ARGUMENTS)


def open_disk(
    disk: Disk, namespace: Namespace, codec: ExtentCodec, owner: str, rank: int = 0, split: str = "tp1"
) -> DiskStore | ForeignStore | None:
    """The rank's own disk store; None, logged, when the disk can't be used now for a reason that may pass.

    Raises `ConfigError` for a folder, capacity, runtime or class that can never be used. Without a store the folder is
    nobody's.
    """
    volume = volume_of(disk)
    open_store = load_store(disk.store) if disk.store else None
    try:
        mine = claim(volume.root, namespace, owner, rank, split, volume.others)
        with ExitStack() as undo:
            undo.callback(os.close, mine.lock_fd)
            quota = quota_of(disk, volume, codec.layout.extent_bytes)
            if open_store is None:
                file_bytes = parse_size(disk.file_bytes, "tiers.disk.file_bytes")
                settings = DiskSettings(quota, file_bytes, disk.io_threads or None)
                store: DiskStore | ForeignStore = DiskStore(mine, codec, settings, rank, volume.runtime)
                mover = store.runtime.caps.mover
            else:
                store = ForeignStore(mine, codec, open_store, quota.capacity_bytes)
                mover = disk.store
            undo.pop_all()
    except StoreError as error:
        logger.warning("tenuto: the disk tier is off until the next start: %s", error)
        return None
    logger.info("tenuto: disk tier: %s: %s", volume.root, mover)
    return store
