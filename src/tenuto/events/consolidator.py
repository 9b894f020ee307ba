"""One view of a worker for routers: what its engine holds on the device, and what our tiers hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tenuto.errors import InvariantError
from tenuto.events.wire.dynamo import EventWriter, KvCacheEvent
from tenuto.events.wire.engine import EngineBlocks
from tenuto.events.wire.facts import TierBlocks
from tenuto.events.wire.router import RouterBlock
from tenuto.events.wire.view import Changes, ReachableView
from tenuto.events.wire.vllm import EngineBatch
from tenuto.pools.facts import Fact
from tenuto.tokens import TokenBlock


@dataclass(frozen=True, slots=True)
class Statistics:
    """Blocks of the router's size, over all ranks."""

    on_device: int
    in_tiers: int
    on_worker: int
    """Held by either."""
    told: int
    """Of these, those that a walk from a prompt's beginning comes to."""


class Consolidator:
    """Merges vLLM's own device events with our tiers' facts: one view of each data-parallel rank of a worker.

    A block of `router_tokens` tokens (the engine's block size) is told as stored when it first appears on a rank,
    whoever has it, and as removed when the last has lost it; a source that clears takes away what it alone had. Blocks
    behind a gap are told when the gap is closed (see `ReachableView`). Ranks are made as they are heard of. Not
    thread-safe: call it from one thread.
    """

    def __init__(self, block_tokens: int, router_tokens: int, *, counts_copies: bool = True) -> None:
        self._block_tokens = block_tokens
        self._router_tokens = router_tokens
        self._counts_copies = counts_copies
        self._ranks: dict[int, _Rank] = {}
        self._rank(0)  # refuses wrong sizes at once

    def __repr__(self) -> str:
        return f"Consolidator(ranks={sorted(self._ranks)}, {self.statistics()})"

    def take_facts(self, facts: Iterable[Fact], dp_rank: int = 0) -> list[KvCacheEvent]:
        """The events of what became of our tiers' blocks."""
        rank = self._rank(dp_rank)
        rank.tiers.take(facts)
        return rank.events()

    def take_engine(self, batch: EngineBatch) -> list[KvCacheEvent]:
        """The events of what became of the engine's blocks, as `read_message` gives it."""
        rank = self._rank(batch.data_parallel_rank or 0)
        rank.engine.take(batch.events)
        return rank.events()

    def learn(self, blocks: Iterable[TokenBlock], dp_rank: int = 0) -> list[KvCacheEvent]:
        """The events of our blocks whose tokens were not known when they were stored."""
        rank = self._rank(dp_rank)
        rank.tiers.learn(blocks)
        return rank.events()

    def forget_tiers(self, dp_rank: int = 0) -> list[KvCacheEvent]:
        """Our tiers of a rank are gone, or will be told anew."""
        rank = self._rank(dp_rank)
        rank.tiers.ledger.clear_all()
        return rank.events()

    def forget_engine(self, dp_rank: int = 0) -> list[KvCacheEvent]:
        """The engine of a rank is gone, or messages of it were missed: what it has can't be known."""
        rank = self._rank(dp_rank)
        rank.engine.clear()
        return rank.events()

    def snapshot(self) -> list[KvCacheEvent]:
        """All there is on all ranks, each behind a `cleared`: for a router that begins, or has missed something."""
        return [event for number in sorted(self._ranks) for event in self._ranks[number].snapshot()]

    def statistics(self) -> Statistics:
        """How many blocks there are."""
        ranks = self._ranks.values()
        return Statistics(
            sum(rank.held.count_of(_ENGINE) for rank in ranks),
            sum(rank.held.count_of(_TIERS) for rank in ranks),
            sum(len(rank.held) for rank in ranks),
            sum(len(rank.view) for rank in ranks),
        )

    def check(self) -> None:
        """Raise `InvariantError` unless the books of all ranks balance."""
        for rank in self._ranks.values():
            rank.check()

    def _rank(self, number: int) -> _Rank:
        rank = self._ranks.get(number)
        if rank is None:
            rank = self._ranks[number] = _Rank(
                number, self._block_tokens, self._router_tokens, counts_copies=self._counts_copies
            )
        return rank


_ENGINE, _TIERS = 1, 2


class _Union:
    """The blocks that any of several sources holds, told to a view; a source is a bit."""

    def __init__(self, view: ReachableView) -> None:
        self._view = view
        self._sources: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._sources)

    def count_of(self, source: int) -> int:
        return sum(1 for sources in self._sources.values() if sources & source)

    def hold(self, block: RouterBlock, source: int) -> None:
        sources = self._sources.get(block.sequence_hash, 0)
        self._sources[block.sequence_hash] = sources | source
        if not sources:
            self._view.hold(block)

    def drop(self, sequence_hash: int, source: int) -> None:
        left = self._sources[sequence_hash] & ~source
        if left:
            self._sources[sequence_hash] = left
        else:
            del self._sources[sequence_hash]
            self._view.drop(sequence_hash)


@dataclass(frozen=True, slots=True)
class _Source:
    """One source's side of a union."""

    union: _Union
    bit: int

    def hold(self, block: RouterBlock) -> None:
        self.union.hold(block, self.bit)

    def drop(self, sequence_hash: int) -> None:
        self.union.drop(sequence_hash, self.bit)


class _Rank:
    """One data-parallel rank."""

    def __init__(self, number: int, block_tokens: int, router_tokens: int, *, counts_copies: bool) -> None:
        self.view = ReachableView()
        self.held = _Union(self.view)
        self.tiers = TierBlocks(block_tokens, router_tokens, _Source(self.held, _TIERS))
        self.engine = EngineBlocks(router_tokens, _Source(self.held, _ENGINE), counts_copies=counts_copies)
        self._writer = EventWriter(number)

    def events(self) -> list[KvCacheEvent]:
        return self._writer.write(self.view.take())

    def snapshot(self) -> Sequence[KvCacheEvent]:
        self.view.take()
        return [self._writer.cleared(), *self._writer.write(Changes(stored=self.view.all()))]

    def check(self) -> None:
        self.tiers.ledger.check()
        self.engine.ledger.check()
        self.view.check()
        if self.view.n_held != len(self.held):
            raise InvariantError(f"{self.view!r} is not of {len(self.held)} held blocks")
