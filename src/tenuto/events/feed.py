"""From a manager to its publishers, where there are any."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence

from tenuto import config
from tenuto.events.batch import Source
from tenuto.events.grouping import BlockShape
from tenuto.events.publisher import Publisher, PublisherSettings
from tenuto.events.routers import RouterPublisher
from tenuto.events.ways import make_sender, parse_address
from tenuto.metrics import Recorder
from tenuto.pools.facts import Cleared, Fact, Removed, Stored, TierKind
from tenuto.tokens import BlockKey, HashChain


class Feed:
    """Call it whenever `take` may have facts to give: they are published. One thread at a time."""

    def __init__(self, take: Callable[[], Sequence[Fact]]) -> None:
        self._take = take
        self.publisher: Publisher | None = None
        self.router: RouterPublisher | None = None
        """Is told the same, for routers."""

    def __call__(self) -> None:
        """Pass on what `take` gives."""
        facts = self._take()
        if not facts:
            return
        if self.publisher is not None:
            self.publisher.publish(facts)
        if self.router is not None:
            self.router.publish(facts)

    def found(self, chain: HashChain, n_blocks: int) -> None:
        """A prompt's first `n_blocks` blocks were found: routers need its tokens."""
        if self.router is not None:
            self.router.learn(chain, n_blocks)

    def tell(self, fact: type[Stored | Removed], tier: TierKind, keys: Sequence[BlockKey]) -> None:
        """Publish one more fact, of blocks that `take` does not tell of."""
        if keys and self.publisher is not None:
            self.publisher.publish([fact(tier, tuple(keys))])

    def rename(self, namespace: bytes, *tiers: TierKind) -> None:
        """All blocks were forgotten, also those of `tiers`, which `take` does not tell of; others come."""
        self()
        if self.publisher is not None:
            self.publisher.publish([Cleared(tier) for tier in tiers])
            self.publisher.rename(namespace)

    def close(self) -> None:
        """Send what waits, and that memory is given up, and end."""
        self()
        if self.publisher is not None:
            self.publisher.publish([Cleared(TierKind.DEVICE), Cleared(TierKind.HOST)])
            self.publisher.close()
        if self.router is not None:
            self.router.close()


def worker_name(settings: config.Events, worker: str) -> str:
    """The name that an engine has in events; `worker` where the settings have none."""
    return worker if settings.worker == "auto" else settings.worker


def open_publisher(
    settings: config.Events,
    worker: str,
    rank: int,
    namespace: bytes,
    shape: BlockShape,
    snapshot: Callable[[], Iterable[Stored]],
    recorder: Recorder,
) -> Publisher | None:
    """The publisher of a data-parallel rank, whose figures `recorder` reads; None when there is no `events.url`.

    `worker`: its name where the settings have none. Raises `ConfigError` for a URL that is of no use.
    """
    if not settings.url:
        return None
    node = socket.gethostname() if settings.node == "auto" else settings.node
    name = worker_name(settings, worker)
    sender = make_sender(parse_address(settings.url).of_rank(rank))
    source = Source(node, name, rank, namespace)
    publisher = Publisher(sender, source, shape, snapshot, PublisherSettings(idle_s=settings.idle_s))
    recorder.watch(publisher.read)
    publisher.start()
    return publisher
