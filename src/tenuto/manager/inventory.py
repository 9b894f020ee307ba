"""All that a manager's pools hold, for a snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from tenuto.pools import Pool
from tenuto.pools.facts import Stored, TierKind

_SLOTS = 1024  # looked at under a pool's lock together


def inventory(*tiers: tuple[TierKind, Pool | None]) -> Iterator[Stored]:
    """The blocks that can be matched, in pieces, from any thread, while they come and go."""
    for tier, pool in tiers:
        at = 0
        while pool is not None and at < len(pool):
            if keys := pool.registered(at, at + _SLOTS):
                yield Stored(tier, tuple(keys))
            at += _SLOTS
