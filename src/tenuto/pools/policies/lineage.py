"""Leaf first: a chain is never cut in its middle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenuto.pools.policies.leaves import LeafQueues
from tenuto.pools.policies.protocol import Slots, Where, parents_of
from tenuto.tokens import BlockKey


class Lineage:
    """The least recently released block that no cached block continues.

    A block whose parent is not here can't be matched, so a parent outlives its children, whatever was used when.
    The order of SGLang's RadixAttention (Zheng et al., NeurIPS 2024: leaves of the radix tree, least recent first).
    When every cached block has a leased child, the least recent one goes all the same.
    """

    def __init__(self) -> None:
        self._leaves = LeafQueues()

    def grow(self, n_slots: int) -> None:
        """See `Policy`."""
        self._leaves.grow(n_slots)

    def cached(self, slots: Slots, keys: Sequence[BlockKey], where: Where) -> None:
        """See `Policy`."""
        if len(slots):
            self._leaves.links.link(slots, parents_of(slots, keys, where))
            self._leaves.put(self._queue_of(slots, keys), slots[::-1].copy())

    def leased(self, slots: Slots) -> None:
        """See `Policy`."""
        self._leaves.remove(slots)

    def forgotten(self, slots: Slots) -> None:
        """See `Policy`."""
        self._put_back(self._leaves.lose(slots))

    def evict(self, n: int) -> list[int]:
        """See `Policy`."""
        victims: list[Slots] = []
        while n > 0 and self._leaves.queues:
            taken = self._leaves.take(min(self._leaves.queues), n)
            self._put_back(taken.freed)
            victims.append(taken.victims)
            n -= len(taken.victims)
        if n > 0 or not victims:
            victims.append(self._leaves.take_any(n))
        found: list[int] = np.concatenate(victims).tolist()
        return found

    def _queue_of(self, slots: Slots, keys: Sequence[BlockKey]) -> int:
        """The queue that a batch belongs in; those of low numbers are emptied first."""
        del slots, keys
        return 0

    def _put_back(self, freed: Slots) -> None:
        """These waited for others, though it was their turn."""
        self._leaves.put(0, freed, is_next=True)
