"""One view of a worker for routers: what its engine holds on the device, and what our tiers hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tenuto.events.wire.dynamo import EventWriter, KvCacheEvent
from tenuto.events.wire.rank import RankView
from tenuto.events.wire.view import Changes
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
        rank.view.tiers.take(facts)
        return rank.events()

    def take_engine(self, batch: EngineBatch) -> list[KvCacheEvent]:
        """The events of what became of the engine's blocks, as `read_message` gives it."""
        rank = self._rank(batch.data_parallel_rank or 0)
        rank.view.engine.take(batch.events)
        return rank.events()

    def learn(self, blocks: Iterable[TokenBlock], dp_rank: int = 0) -> list[KvCacheEvent]:
        """The events of our blocks whose tokens were not known when they were stored."""
        rank = self._rank(dp_rank)
        rank.view.tiers.learn(blocks)
        return rank.events()

    def forget_tiers(self, dp_rank: int = 0) -> list[KvCacheEvent]:
        """Our tiers of a rank are gone, or will be told anew."""
        rank = self._rank(dp_rank)
        rank.view.tiers.ledger.clear_all()
        return rank.events()

    def forget_engine(self, dp_rank: int = 0) -> list[KvCacheEvent]:
        """The engine of a rank is gone, or messages of it were missed: what it has can't be known."""
        rank = self._rank(dp_rank)
        rank.view.engine.clear()
        return rank.events()

    def snapshot(self) -> list[KvCacheEvent]:
        """All there is on all ranks, each behind a `cleared`: for a router that begins, or has missed something."""
        return [event for number in sorted(self._ranks) for event in self._ranks[number].snapshot()]

    def statistics(self) -> Statistics:
        """How many blocks there are."""
        views = [rank.view for rank in self._ranks.values()]
        return Statistics(
            sum(view.n_on_device for view in views),
            sum(view.n_in_tiers for view in views),
            sum(view.n_held for view in views),
            sum(view.n_told for view in views),
        )

    def check(self) -> None:
        """Raise `InvariantError` unless the books of all ranks balance."""
        for rank in self._ranks.values():
            rank.view.check()

    def _rank(self, number: int) -> _Rank:
        rank = self._ranks.get(number)
        if rank is None:
            view = RankView(self._block_tokens, self._router_tokens, counts_copies=self._counts_copies)
            rank = self._ranks[number] = _Rank(number, view)
        return rank


class _Rank:
    """One data-parallel rank."""

    def __init__(self, number: int, view: RankView) -> None:
        self.view = view
        self._writer = EventWriter(number)

    def events(self) -> list[KvCacheEvent]:
        return self._writer.write(self.view.changes())

    def snapshot(self) -> Sequence[KvCacheEvent]:
        self.view.changes()
        return [self._writer.cleared(), *self._writer.write(Changes(stored=self.view.all()))]
