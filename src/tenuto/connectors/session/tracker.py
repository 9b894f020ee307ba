"""What the leader knows of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tenuto.manager import Choice, Hit
from tenuto.tokens import BlockHash, ExtraKeys, HashChain
from tenuto.transfers.plan import PageRun


class RequestView(Protocol):
    """An engine's request, as far as a cache needs it. Reads through to the engine's object."""

    @property
    def request_id(self) -> str:
        """Unique while the request lives."""
        ...

    @property
    def n_tokens(self) -> int:
        """Tokens known so far: prompt and generated."""
        ...

    @property
    def n_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        ...

    @property
    def extra(self) -> ExtraKeys:
        """What its keys and values depend on besides tokens."""
        ...

    @property
    def may_read(self) -> bool:
        """Whether cached blocks may be used for it."""
        ...

    @property
    def is_cacheable(self) -> bool:
        """Whether its tokens say all there is to its keys and values."""
        ...

    def token_ids(self, start: int, stop: int) -> Sequence[int]:
        """Token ids [start, stop)."""
        ...


class Progress(NamedTuple):
    """A request scheduled in this step: its new pages (or its whole table), and tokens computed after it."""

    request_id: str
    pages: Sequence[int]
    is_whole_table: bool
    n_computed: int
    n_new: int = 0
    """Of those, the tokens that this step computes."""


@dataclass(slots=True)
class RequestTracker:
    """Chain, page table and position of one request."""

    view: RequestView
    chain: HashChain
    pages_per_block: int
    pages: list[int] = field(default_factory=list[int])
    n_stored: int = 0
    """Blocks from the first that were given to the manager to keep."""
    hit: Hit | None = None
    hit_at: int = 0
    """Tokens the engine had when the hit was found."""
    is_layered: bool = False
    """Whether the hit is loaded under the forward that uses it."""
    waits_for: BlockHash | None = None
    """A block on its way into host memory that the last lookup ended at."""
    asked_at: int | None = None
    """Tokens the engine had at a lookup that has not been counted yet: it is when the request is admitted."""
    refused_at: int | None = None
    """Tokens the engine had when the cost gate refused a whole hit, which stands until the request is admitted."""
    gated: dict[str, int] = field(default_factory=dict[str, int])
    """Tokens that were found by the last lookup and are computed all the same, by tier."""
    may_load: bool = True
    """Until a load of it has failed: it is computed then, once and for all."""
    is_stale: bool = False
    """Computed before a reset: never kept."""

    def extend(self, n_tokens: int) -> None:
        """Have the chain cover the first `n_tokens` tokens."""
        have = len(self.chain)
        if n_tokens > have:
            self.chain.append(self.view.token_ids(have, n_tokens))

    def runs(self, start: int, stop: int, first_page: int = 0) -> list[PageRun]:
        """Page runs of blocks [start, stop); the first one begins at its page `first_page`."""
        per = self.pages_per_block
        return [
            PageRun(tuple(self.pages[i * per : (i + 1) * per]), first_page if i == start else 0)
            for i in range(start, stop)
        ]

    @property
    def n_external(self) -> int:
        """Tokens that the hit has beyond those of the engine; below 1 when it has none."""
        hit = self.hit
        return 0 if hit is None else (hit.start + hit.n_blocks) * self.chain.block_tokens - self.hit_at

    def trim_hit(self, chosen: Choice) -> None:
        """Give back all but the blocks of the hit that are to be loaded: they are computed."""
        hit, n_blocks = self.hit, chosen.n_blocks
        assert hit is not None
        self.is_layered = chosen.is_layered
        if n_blocks >= hit.n_blocks:
            return
        if n_blocks:
            given = hit.trim(n_blocks)
        else:
            given = [(span.place, len(span.keys)) for span in hit.spans]
            self.refused_at = self.hit_at
        skipped = 0 if n_blocks else self.hit_at - hit.start * self.chain.block_tokens
        for place, n in given:
            n_tokens = n * self.chain.block_tokens - skipped
            self.gated[place] = self.gated.get(place, 0) + n_tokens
            skipped = 0
        if not n_blocks:
            self.drop_hit()

    def drop_hit(self) -> None:
        """Give an unused hit back."""
        if self.hit is not None:
            self.hit.release()
            self.hit = None
