"""All that a manager's pools hold, for a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tenuto.manager.telling import by_volume
from tenuto.pools import Pool
from tenuto.pools.facts import Stored, TierKind
from tenuto.tokens import BlockHash

_NOWHERE_ELSE: Mapping[BlockHash, str] = {}
_SLOTS = 1024  # looked at under a pool's lock together


def inventory(volumes: Mapping[BlockHash, str], *tiers: tuple[TierKind, Pool | None]) -> Iterator[Stored]:
    """The blocks that can be matched, in pieces, from any thread, while they come and go.

    `volumes`: of disk blocks that are not on the home volume.
    """
    for tier, pool in tiers:
        at = 0
        while pool is not None and at < len(pool):
            keys = pool.registered(at, at + _SLOTS)
            where = volumes if tier is TierKind.DISK else _NOWHERE_ELSE
            for volume, some in by_volume(keys, where).items():
                yield Stored(tier, some, volume=volume)
            at += _SLOTS
