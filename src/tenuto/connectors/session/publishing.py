"""The publishers of a leader's facts."""

from __future__ import annotations

from collections.abc import Iterator

from tenuto.connectors.session.leader import Leader
from tenuto.events import BlockShape
from tenuto.events.feed import open_publisher
from tenuto.events.routers import engine_endpoints, open_router
from tenuto.manager import inventory
from tenuto.pools.facts import Stored, TierKind


def publish(leader: Leader) -> None:
    """Publish what becomes of an engine's blocks, where the settings say so. Raises `ConfigError`."""
    setup, manager, feed = leader.setup, leader.manager, leader.feed
    layout, events, rank = setup.layout, setup.config.events, setup.engine_index

    def held() -> Iterator[Stored]:
        return inventory(manager.told.volumes, (TierKind.HOST, manager.host), (TierKind.DISK, manager.disk))

    engine = setup.engine_events if events.engine_url == "auto" else None
    if events.engine_url not in ("", "auto"):
        engine = engine_endpoints(events.engine_url, rank)
    feed.router = open_router(events, rank, layout.block_tokens, setup.page_tokens, held, leader.recorder, engine)
    manager.flights.tells_tokens = feed.router is not None
    try:
        feed.publisher = open_publisher(
            events, setup.engine_id, rank, setup.namespace.digest,
            BlockShape(layout.extent_bytes * setup.world_size, layout.block_tokens),
            held, leader.recorder,
        )  # fmt: skip
    except BaseException:
        feed.close()
        raise
    manager.told.tells_uses = feed.publisher is not None
