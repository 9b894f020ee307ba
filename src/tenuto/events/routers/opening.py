"""A publisher to routers, as the settings want it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tenuto import config
from tenuto.events.routers.enginestream import EngineEndpoints, EngineStream
from tenuto.events.routers.publisher import RouterPublisher, RouterSettings
from tenuto.events.ways.address import parse_router_address
from tenuto.events.ways.zeromq import ZmqSender
from tenuto.events.wire.schemas import TiersSchema, WorkerSchema
from tenuto.metrics import Recorder
from tenuto.pools.facts import Stored

_MOST_QUEUED = 1000
"""Messages that wait for a reader that is slow: they are large, with tokens, and it can ask for what is dropped."""


def open_router(
    settings: config.Events,
    rank: int,
    block_tokens: int,
    page_tokens: int,
    inventory: Callable[[], Iterable[Stored]],
    recorder: Recorder,
    engine: EngineEndpoints | None = None,
) -> RouterPublisher | None:
    """The publisher of a data-parallel rank, whose figures `recorder` reads; None when there is no `events.router_url`.

    `page_tokens`: of the engine's blocks; `engine`: where it tells of them, if it does. Raises `ConfigError` for a URL
    that is of no use, and for pages that do not divide blocks.
    """
    if not settings.router_url:
        return None
    address = parse_router_address(settings.router_url, "events.router_url").of_rank(rank)
    is_whole = settings.router_schema == "dynamo"
    schema = WorkerSchema(block_tokens, page_tokens) if is_whole else TiersSchema(block_tokens, rank)
    sender = ZmqSender(address, _MOST_QUEUED)
    stream = EngineStream(engine) if is_whole and engine is not None else None
    try:
        publisher = RouterPublisher(sender, schema, rank, inventory, stream, RouterSettings(idle_s=settings.idle_s))
    except BaseException:
        if stream is not None:
            stream.close()
        raise
    recorder.watch(publisher.read)
    publisher.start()
    return publisher
