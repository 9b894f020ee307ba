"""What a pool asks of a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tenuto.errors import InvariantError
from tenuto.tokens import BlockHash, BlockKey

Slots = npt.NDArray[np.int32]
"""Slot numbers, in one dimension."""
Where = Mapping[BlockHash, int]
"""The slot of each block that can be matched now: where a block's parent lies."""

hash_of: Callable[[BlockKey], BlockHash] = itemgetter(0)
parent_of: Callable[[BlockKey], BlockHash] = itemgetter(1)
"""Parts of a `BlockKey`, for `map`: quicker than their names where there are many."""


class Policy(Protocol):
    """Chooses victims among the slots that nobody leases. Called under the pool's lock, in batches.

    A policy sees slot numbers and block keys (hash, parent, first of the chain) and nothing else: no clock, no bytes.
    Slots come as int32 arrays of one dimension.
    """

    def grow(self, n_slots: int) -> None:
        """The pool has `n_slots` slots from now on."""
        ...

    def cached(self, slots: Slots, keys: Sequence[BlockKey], where: Where) -> None:
        """These slots hold these blocks, in chain order, and can be evicted from now on.

        A slot that was cached before and not evicted or forgotten since was used in between.
        """
        ...

    def leased(self, slots: Slots) -> None:
        """These slots were matched: they can't be evicted for now."""
        ...

    def forgotten(self, slots: Slots) -> None:
        """These slots, cached or leased until now, have lost their content."""
        ...

    def evict(self, n: int) -> list[int]:
        """Up to `n` victims, in order; fewer only when no more are cached. They have lost their content then."""
        ...


def victims_of(policy: Policy, n: int, states: npt.NDArray[np.uint8], leases: npt.NDArray[np.int32]) -> list[int]:
    """`n` slots that a policy chose. Raises `InvariantError` for others than cached ones: two would write one slot."""
    victims = policy.evict(n)
    array = np.array(victims, np.int32).view(np.uint32)  # below 0 is out of range, too
    try:
        are_cached = bool(states.take(array).all()) and not leases.take(array).any()
    except IndexError:
        are_cached = False
    if not (are_cached and len(victims) == len(set(victims)) == n):
        raise InvariantError(f"{type(policy).__name__} was to choose {n} cached slots, and chose {victims[:8]}")
    return victims


def parents_of(slots: Slots, keys: Sequence[BlockKey], where: Where) -> Slots:
    """The slot of each block's parent; -1 where that is not here. Fast for the blocks of one chain."""
    n = len(keys)
    parents = np.empty(n, np.int32)
    above = [key.parent for key in keys]
    if n and above[1:] == [key.hash for key in keys[:-1]]:
        parents[0], parents[1:] = where.get(above[0], -1), slots[:-1]
    else:
        parents[:] = [where.get(parent, -1) for parent in above]
    parents[parents == slots] = -1
    return parents
