"""The publisher of a leader's facts."""

from __future__ import annotations

from tenuto.connectors.session.leader import Leader
from tenuto.events import BlockShape
from tenuto.events.feed import open_publisher
from tenuto.manager import inventory
from tenuto.pools.facts import TierKind


def publish(leader: Leader) -> None:
    """Publish what becomes of an engine's blocks, where the settings say so. Raises `ConfigError`."""
    setup, manager = leader.setup, leader.manager
    layout = setup.layout
    leader.feed.publisher = open_publisher(
        setup.config.events, setup.engine_id, setup.engine_index, setup.namespace.digest,
        BlockShape(layout.extent_bytes * setup.world_size, layout.block_tokens),
        lambda: inventory((TierKind.HOST, manager.host), (TierKind.DISK, manager.disk)), leader.recorder,
    )  # fmt: skip
    manager.flights.tells_uses = leader.feed.publisher is not None
