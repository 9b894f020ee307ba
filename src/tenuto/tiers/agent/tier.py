"""Opening the disk tier of one rank: the agent over its home volume, or a store of others."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from tenuto.config import Disk
from tenuto.errors import StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.agent.agent import Identity, StorageAgent
from tenuto.tiers.agent.control import ControlServer
from tenuto.tiers.disk.foreign import ForeignStore
from tenuto.tiers.disk.opening import open_disk

logger = logging.getLogger(__name__)

TierStore = StorageAgent | ForeignStore


def open_tier(disk: Disk, codec: ExtentCodec, owner: str, identity: Identity) -> TierStore | None:
    """The rank's store, which an advisor can drive; a store of others has one volume alone, and no agent.

    None and errors: see `open_disk`.
    """
    home = open_disk(disk, identity.namespace, codec, owner, identity.rank, identity.split)
    if home is None or isinstance(home, ForeignStore):
        return home
    with ExitStack() as undo:
        undo.callback(home.close)
        try:
            agent = StorageAgent(home, codec, identity)
        except StoreError as error:
            logger.warning("tenuto: the disk tier is off until the next start: %s", error)
            return None
        undo.pop_all()
    agent.served_by(ControlServer(agent))
    return agent
