"""What a router is told, by the schema that it reads: both are vLLM's events, which is what routers take over ZeroMQ.

Prior art: Dynamo's workers read vLLM's `KVEventBatch`, from the engine or from a consolidator before it, and so does
its indexer: `ai-dynamo/dynamo`, `lib/kv-router/src/zmq_wire`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

from tenuto.events.wire.facts import facts_since
from tenuto.events.wire.rank import RankView
from tenuto.events.wire.router import RouterBlock
from tenuto.events.wire.view import runs_of
from tenuto.events.wire.vllm import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineBatch,
    EngineEvent,
    SnapshotPart,
    VllmEvents,
)
from tenuto.pools.facts import Fact, Stored
from tenuto.tokens import HashChain

_MOST_BLOCKS = 1024
"""In one event: what a reader takes in at once."""


class Schema(Protocol):
    """Takes what has become of blocks, and gives what a router has to be told of it. On one thread."""

    @property
    def n_told(self) -> int:
        """Blocks that the router knows of now."""
        ...

    def take(self, facts: Iterable[Fact]) -> None:
        """Take in facts of our tiers, in order."""
        ...

    def learn(self, chain: HashChain, n_blocks: int) -> None:
        """Take in the tokens of a prompt's first `n_blocks` blocks, of which some were stored without."""
        ...

    def take_engine(self, batch: EngineBatch) -> None:
        """Take in what the engine has told."""
        ...

    def forget_engine(self) -> None:
        """Messages of the engine were missed: what it has can't be known."""
        ...

    def catch_up(self, stored: Iterable[Stored]) -> None:
        """Facts were missed: `stored` is all that our tiers hold."""
        ...

    def forget(self) -> None:
        """The worker ends: it has nothing."""
        ...

    def changes(self) -> list[EngineEvent]:
        """What has to be told since the last call."""
        ...

    def snapshot(self) -> list[SnapshotPart]:
        """All that was told, with what a router that knows something else needs before it."""
        ...


class TiersSchema:
    """Blocks of ours in the media `CPU` and `STORAGE`, beside what the engine tells of its own in a stream of its own.

    Nothing clears all: a reader would take that for the engine's blocks, too.
    """

    def __init__(self, block_tokens: int, dp_rank: int) -> None:
        self._writer = VllmEvents(block_tokens, dp_rank=dp_rank, is_alone=False)
        self._events: list[EngineEvent] = []

    @property
    def n_told(self) -> int:
        """See `Schema`: those in several media count in each."""
        return self._writer.n_told

    def take(self, facts: Iterable[Fact]) -> None:
        """See `Schema`."""
        self._events += self._writer.take(facts)

    def learn(self, chain: HashChain, n_blocks: int) -> None:
        """See `Schema`."""
        wanted = [index for index in range(n_blocks) if self._writer.wants(chain.hashes[index])]
        self._events += self._writer.take_tokens([chain.block(index) for index in wanted])

    def take_engine(self, batch: EngineBatch) -> None:
        """See `Schema`: readers have it from the engine."""

    def forget_engine(self) -> None:
        """See `Schema`."""

    def catch_up(self, stored: Iterable[Stored]) -> None:
        """See `Schema`."""
        self.take(facts_since(self._writer.places, stored))

    def forget(self) -> None:
        """See `Schema`."""
        self.catch_up(())

    def changes(self) -> list[EngineEvent]:
        """See `Schema`."""
        events, self._events = self._events, []
        return events

    def snapshot(self) -> list[SnapshotPart]:
        """See `Schema`."""
        return self._writer.parts(_MOST_BLOCKS)


class WorkerSchema:
    """What a rank of a worker has, on its device or in a tier, in blocks of the engine's size: each is told once.

    A block's name is Dynamo's sequence hash, so that the engine's and ours are the same; there is no medium. It is all
    that a router hears of the worker.
    """

    def __init__(self, block_tokens: int, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._view = RankView(block_tokens, page_tokens)

    @property
    def n_told(self) -> int:
        """See `Schema`: in pages of the engine."""
        return self._view.n_told

    def take(self, facts: Iterable[Fact]) -> None:
        """See `Schema`."""
        self._view.tiers.take(facts)

    def learn(self, chain: HashChain, n_blocks: int) -> None:
        """See `Schema`."""
        tiers = self._view.tiers
        wanted = [index for index in range(n_blocks) if tiers.ledger.wants(chain.hashes[index])]
        tiers.learn([chain.block(index) for index in wanted])

    def take_engine(self, batch: EngineBatch) -> None:
        """See `Schema`."""
        self._view.engine.take(batch.events)

    def forget_engine(self) -> None:
        """See `Schema`."""
        self._view.engine.clear()

    def catch_up(self, stored: Iterable[Stored]) -> None:
        """See `Schema`."""
        self.take(facts_since(self._view.tiers.ledger.places, stored))

    def forget(self) -> None:
        """See `Schema`."""
        self.forget_engine()
        self._view.tiers.ledger.clear_all()

    def changes(self) -> list[EngineEvent]:
        """See `Schema`."""
        changes = self._view.changes()
        events: list[EngineEvent] = [BlockRemoved(list(changes.removed), None)] if changes.removed else []
        return events + [self._stored(run) for run in runs_of(changes.stored, _MOST_BLOCKS)]

    def snapshot(self) -> list[SnapshotPart]:
        """See `Schema`. Call `changes` before."""
        runs = runs_of(self._view.all(), _MOST_BLOCKS)
        return [
            SnapshotPart(0, AllBlocksCleared),
            *(SnapshotPart(len(run), partial(self._stored, run)) for run in runs),
        ]

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        self._view.check()

    def _stored(self, run: Sequence[RouterBlock]) -> BlockStored:
        scope = run[0].scope
        return BlockStored(
            block_hashes=[block.sequence_hash for block in run],
            parent_block_hash=run[0].parent,
            token_ids=array("I", b"".join(block.token_bytes for block in run)).tolist(),
            block_size=self._page_tokens,
            lora_id=None,
            medium=None,
            lora_name=scope.lora_name or None,
            cache_salt=scope.bare_salt or None,
        )
