"""All that a manager's pools hold, for a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tenuto.manager.telling import by_volume
from tenuto.pools import Pool
from tenuto.pools.facts import Stored, TierKind
from tenuto.tokens import BlockHash

_SLOTS = 1024  # looked at under a pool's lock together


def inventory(volumes: Mapping[BlockHash, str], *tiers: tuple[TierKind, Pool | None]) -> Iterator[Stored]:
    """The blocks that can be matched, in pieces, from any thread, while they come and go.

    `volumes`: of disk blocks that are not on the home volume.
    """
    for tier, pool in tiers:
        at = 0
        while pool is not None and at < len(pool):
            keys = pool.registered(at, at + _SLOTS)
            if tier is TierKind.DISK and volumes:
                found = by_volume(keys, volumes)
                still = set(pool.registered(at, at + _SLOTS))  # who is gone meanwhile has no volume any more either
                keys = []
                for volume, some in found.items():
                    if there := tuple(key for key in some if key in still):
                        yield Stored(tier, there, volume=volume)
            if keys:
                yield Stored(tier, tuple(keys))
            at += _SLOTS
