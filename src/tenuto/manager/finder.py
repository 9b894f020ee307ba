"""Where the blocks of a chain are: the longest run that can be loaded, place by place."""

from __future__ import annotations

from collections.abc import Container
from itertools import takewhile

from tenuto.manager.blockset import BlockSet
from tenuto.manager.results import Span
from tenuto.pools import Pool
from tenuto.pools.facts import TierKind
from tenuto.tokens import BlockHash, HashChain


class Finder:
    """Looks in host memory first, then on our disk, then in what other engines hold. Leases what it finds."""

    def __init__(self, host: Pool, disk: Pool | None, peers: BlockSet, arriving: Container[BlockHash]) -> None:
        self._host = host
        self._disk = disk
        self._peers = peers
        self._arriving = arriving
        self.uses_disk = disk is not None
        """Off while the disk refuses reads."""

    def find(self, chain: HashChain, start: int) -> list[Span]:
        """Spans of blocks from `start` on, up to the first that is nowhere or still on its way."""
        hashes = chain.hashes
        if start:
            self._host.match(hashes[:start]).release()  # what the device holds is recently used here too
        spans: list[Span] = []
        at = start
        while at < len(hashes) and hashes[at] not in self._arriving:
            span = self._leased(self._host, TierKind.HOST, chain, at, len(hashes))
            if span is None and self.uses_disk:
                stop = self._gap_end(hashes, at)
                span = self._on_disk(chain, at, stop) or self._at_peers(chain, at, stop)
            if span is None:
                break
            spans.append(span)
            at += len(span.keys)
        return spans

    def _on_disk(self, chain: HashChain, at: int, stop: int) -> Span | None:
        return None if self._disk is None else self._leased(self._disk, TierKind.DISK, chain, at, stop)

    def _leased(self, pool: Pool, tier: TierKind, chain: HashChain, at: int, stop: int) -> Span | None:
        lease = pool.match(chain.hashes[at:stop])
        if not len(lease):
            lease.release()
            return None
        return Span(tier, tuple(pool.keys(lease)), tuple(lease.slots), lease, "", chain, at)

    def _gap_end(self, hashes: list[BlockHash], at: int) -> int:
        """Where host memory has the next block, or will have."""
        after = range(at, len(hashes))
        return next((i for i in after if hashes[i] in self._host or hashes[i] in self._arriving), len(hashes))

    def _at_peers(self, chain: HashChain, at: int, stop: int) -> Span | None:
        first = self._peers.find(chain.hashes[at])
        if first is None:
            return None
        places = map(self._peers.find, chain.hashes[at:stop])
        slots = tuple(place[1] for place in takewhile(lambda p: p is not None and p[0] == first[0], places) if place)
        keys = tuple(chain.key(index) for index in range(at, at + len(slots)))
        return Span(TierKind.DISK, keys, slots, None, first[0], chain, at)
