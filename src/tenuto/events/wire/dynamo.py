"""Facts as events of NVIDIA Dynamo's KV router: what its `RadixTree.apply_event` takes.

Prior art: `KvCacheEvent` of `ai-dynamo/dynamo`, `lib/kv-router/src/protocols.rs`. Tested with ai-dynamo-runtime 1.6.1.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tenuto.events.wire.facts import TierBlocks
from tenuto.events.wire.router import RouterBlock
from tenuto.events.wire.view import Changes, ReachableView, runs_of
from tenuto.pools.facts import Fact
from tenuto.tokens import TokenBlock


class StoredBlock(msgspec.Struct, frozen=True, gc=False):
    """One block of a `StoreData`: its sequence hash and the hash of its tokens, 64 bits each."""

    block_hash: int
    tokens_hash: int


class StoreData(msgspec.Struct, frozen=True):
    """A run of blocks, each the parent of the next; `parent_hash` is the sequence hash of the block before the run."""

    parent_hash: int | None
    blocks: tuple[StoredBlock, ...]


class RemoveData(msgspec.Struct, frozen=True):
    """Sequence hashes, the last of a chain first."""

    block_hashes: tuple[int, ...]


class StoredPart(msgspec.Struct, frozen=True):
    """The blocks of `stored` are there from now on."""

    stored: StoreData


class RemovedPart(msgspec.Struct, frozen=True):
    """The blocks of `removed` are not there any more."""

    removed: RemoveData


CLEARED = "cleared"
"""In place of a part: the worker's rank has nothing any more."""


class KvCacheEvent(msgspec.Struct, frozen=True):
    """One event of one data-parallel rank of a worker; ids grow by one within a rank."""

    event_id: int
    data: StoredPart | RemovedPart | str
    dp_rank: int = 0


def encode_events(events: Iterable[KvCacheEvent]) -> list[bytes]:
    """Each event in JSON, as `RadixTree.apply_event(worker_id, event)` takes it."""
    return [msgspec.json.encode(event) for event in events]


class EventWriter:
    """Numbers the events of one rank."""

    def __init__(self, dp_rank: int = 0) -> None:
        self.dp_rank = dp_rank
        self._next_id = 0

    def write(self, changes: Changes) -> list[KvCacheEvent]:
        """One event for all that is removed, and one for each run of blocks that are stored."""
        parts: list[StoredPart | RemovedPart] = []
        if changes.removed:
            parts.append(RemovedPart(RemoveData(changes.removed)))
        parts += [StoredPart(_store_data(run)) for run in runs_of(changes.stored)]
        return [self._event(part) for part in parts]

    def cleared(self) -> KvCacheEvent:
        """The rank has nothing any more."""
        return self._event(CLEARED)

    def _event(self, data: StoredPart | RemovedPart | str) -> KvCacheEvent:
        event = KvCacheEvent(self._next_id, data, self.dp_rank)
        self._next_id += 1
        return event


class DynamoEvents:
    """The events of our tiers alone, of one rank of a worker; with the engine's own, see `Consolidator`.

    `router_tokens` is the router's `kv_block_size`, which is the engine's block size. A block is on the worker as long
    as any tier has it, and the blocks before it.
    """

    def __init__(self, block_tokens: int, router_tokens: int, dp_rank: int = 0) -> None:
        self._view = ReachableView()
        self._tiers = TierBlocks(block_tokens, router_tokens, self._view)
        self._writer = EventWriter(dp_rank)

    def take(self, facts: Iterable[Fact]) -> list[KvCacheEvent]:
        """The events of these facts; none where they change nothing for a router."""
        self._tiers.take(facts)
        return self._writer.write(self._view.take())

    def learn(self, blocks: Iterable[TokenBlock]) -> list[KvCacheEvent]:
        """The events of blocks whose tokens were not known when they were stored."""
        self._tiers.learn(blocks)
        return self._writer.write(self._view.take())

    def snapshot(self) -> list[KvCacheEvent]:
        """All there is now, behind a `cleared`: for a router that begins, or has missed something."""
        self._view.take()
        return [self._writer.cleared(), *self._writer.write(Changes(stored=self._view.all()))]

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        self._tiers.ledger.check()
        self._view.check()


def _store_data(run: list[RouterBlock]) -> StoreData:
    return StoreData(run[0].parent, tuple(StoredBlock(block.sequence_hash, block.tokens_hash) for block in run))
