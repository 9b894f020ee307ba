"""What one data-parallel rank of a worker has, on its device or in its tiers: each block once."""

from __future__ import annotations

from dataclasses import dataclass

from tenuto.errors import InvariantError
from tenuto.events.wire.engine import EngineBlocks
from tenuto.events.wire.facts import TierBlocks
from tenuto.events.wire.router import RouterBlock
from tenuto.events.wire.view import Changes, ReachableView

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


class RankView:
    """`tiers` takes our facts and `engine` the engine's events; what a router has to be told of both is in `changes`.

    `router_tokens` is the router's block size, which is the engine's; it must divide `block_tokens` (`ConfigError`).
    """

    def __init__(self, block_tokens: int, router_tokens: int, *, counts_copies: bool = True) -> None:
        self._view = ReachableView()
        self._held = _Union(self._view)
        self.tiers = TierBlocks(block_tokens, router_tokens, _Source(self._held, _TIERS))
        self.engine = EngineBlocks(router_tokens, _Source(self._held, _ENGINE), counts_copies=counts_copies)

    def changes(self) -> Changes:
        """What has changed since the last call."""
        return self._view.take()

    def all(self) -> tuple[RouterBlock, ...]:
        """All that a router was told, or will be with the next changes, each block behind its parent."""
        return self._view.all()

    @property
    def n_on_device(self) -> int:
        """Blocks of the engine."""
        return self._held.count_of(_ENGINE)

    @property
    def n_in_tiers(self) -> int:
        """Blocks of ours."""
        return self._held.count_of(_TIERS)

    @property
    def n_held(self) -> int:
        """Blocks of either."""
        return len(self._held)

    @property
    def n_told(self) -> int:
        """Of these, those that a walk from a prompt's beginning comes to."""
        return len(self._view)

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        self.tiers.ledger.check()
        self.engine.ledger.check()
        self._view.check()
        if self._view.n_held != len(self._held):
            raise InvariantError(f"{self._view!r} is not of {len(self._held)} held blocks")
