"""Slots of a pool that are kept empty, because a store has more slots than room for blocks."""

from __future__ import annotations

from tenuto.pools import Full, Pool, WritableLease
from tenuto.tokens import BlockKey


class Ballast:
    """Holds slots of `pool`; `fit` takes more of them or gives them back. `len` is how many."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._leases: list[WritableLease] = []
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def fit(self, n_usable: int) -> list[BlockKey]:
        """Leave `n_usable` slots to blocks, as far as leases allow now; the blocks that were evicted for it."""
        wanted = max(0, len(self._pool) - n_usable)
        if wanted < self._n:
            while self._leases:
                self._leases.pop().discard()
            self._n = 0
        evicted: list[BlockKey] = []
        if wanted > self._n:
            answer = self._pool.allocate(wanted - self._n)
            if isinstance(answer, Full):
                answer = self._pool.allocate(answer.available)
            if not isinstance(answer, Full):
                evicted = answer.evicted
                self._leases.append(answer.lease)
                self._n += len(answer.lease)
        return evicted
