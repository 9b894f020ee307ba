"""What a manager is given, and the closed unions it answers with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tenuto.memory.pages import PageRun
from tenuto.pools import Lease
from tenuto.pools.facts import TierKind, Used
from tenuto.tokens import BlockHash, BlockKey, HashChain, TokenBlock
from tenuto.transfers.plan import Transfer


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive blocks of a hit that lie in one place, at `slots`; `lease` holds them there."""

    tier: TierKind
    keys: tuple[BlockKey, ...]
    slots: tuple[int, ...]
    lease: Lease | None  # none for another engine's blocks, which are only verified
    volume: str = ""
    chain: HashChain | None = field(default=None, compare=False, repr=False)
    first: int = field(default=0, compare=False)
    """The chain that was looked for, and where in it the span begins."""

    def token_blocks(self) -> tuple[TokenBlock, ...]:
        """Its blocks with their tokens, where these are known."""
        chain = self.chain
        return () if chain is None else tuple(chain.block(self.first + i) for i in range(len(self.keys)))

    @property
    def place(self) -> str:
        """As metrics name it: "host", "disk", or "peer" for another engine's disk."""
        return "peer" if self.volume and self.tier is TierKind.DISK else self.tier.value


@dataclass(slots=True)
class Hit:
    """Blocks [start, start + n_blocks) of the chain can be loaded.

    They are leased until the hit is given to `onboard` or released.
    """

    start: int
    spans: tuple[Span, ...]
    _closed: Callable[[Hit], None] = field(repr=False)

    @property
    def n_blocks(self) -> int:
        """Blocks that can be loaded."""
        return sum(len(span.keys) for span in self.spans)

    @property
    def tiers(self) -> frozenset[TierKind]:
        """Where they are."""
        return frozenset(span.tier for span in self.spans)

    def uses(self) -> list[Used]:
        """That its blocks are loaded, by tier; other engines' blocks are theirs to tell of."""
        return [Used(span.tier, span.keys) for span in self.spans if span.keys and span.place != "peer"]

    def trim(self, n_blocks: int) -> list[tuple[str, int]]:
        """Keep the first `n_blocks` blocks, at least one, and give the rest back: (place, blocks) of its parts."""
        kept: list[Span] = []
        given: list[tuple[str, int]] = []
        for span in self.spans:
            n_kept = min(n_blocks, len(span.keys))
            n_blocks -= n_kept
            if n_kept:
                kept.append(replace(span, keys=span.keys[:n_kept], slots=span.slots[:n_kept]))
            if n_kept < len(span.keys):
                given.append((span.place, len(span.keys) - n_kept))
                if span.lease is not None:
                    span.lease.split(range(n_kept, len(span.keys))).release()
        self.spans = tuple(kept)
        return given

    def release(self) -> None:
        """Give the blocks back unused."""
        for span in self.spans:
            if span.lease is not None:
                span.lease.release()
        self._closed(self)


@dataclass(frozen=True, slots=True)
class Pending:
    """`block`, the next one, is on its way into host memory: ask again."""

    block: BlockHash


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing to load."""


Lookup = Hit | Pending | Miss
"""What a lookup finds."""


@dataclass(frozen=True, slots=True)
class Onboard:
    """Transfers to run. The load has ended when all of `awaited` have."""

    transfers: tuple[Transfer, ...]
    awaited: frozenset[int]


class Filled(NamedTuple):
    """Blocks of a chain from `start` on that a step of the engine has filled, one page run each."""

    chain: HashChain
    start: int
    pages: Sequence[PageRun]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds, in blocks: on the way to disk at once, and waiting for that."""

    max_writes: int = 64
    max_backlog: int = 65536
