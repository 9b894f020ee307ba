"""Blocks with a priority each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tenuto.pools.policies.lineage import Lineage
from tenuto.pools.policies.protocol import Slots, Where
from tenuto.tokens import BlockHash, BlockKey
from tenuto.tokens.chain import HASH_BYTES

NORMAL = 50
"""The priority of a block that was given none."""
HIGHEST = 100


class Priority(Lineage):
    """Lowest priority first; of one priority, as `Lineage`: leaves, least recent first.

    Blocks get priorities of 0 to 100 by hash, as in TensorRT-LLM's retention priorities. `threshold`: of a chain only
    the contiguous prefix is worth keeping whose priorities are all at least this; what stands behind goes first of all,
    since it can't be loaded without what is before it. One pool's alone.
    """

    def __init__(self, threshold: int = 0) -> None:
        super().__init__()
        self._threshold = threshold
        self._given: dict[BlockHash, int] = {}
        self._changed: dict[BlockHash, None] = {}  # since the last victims were chosen
        self._where: Where = {}
        self._priorities: npt.NDArray[np.int16] = np.zeros(0, np.int16)

    def prefer(self, hashes: Iterable[BlockHash], priority: int) -> None:
        """These blocks have this priority from now on, wherever they are: in the pool, or yet to come. Any thread.

        Those in the pool count as used now. 50 is what a block has that was given none. Where there is a threshold,
        blocks below it, and those behind one that is or was below it, change when they are next used.
        Raises `ValueError` for a priority below 0 or above 100, and for what is no hash.
        """
        if not 0 <= priority <= HIGHEST:
            raise ValueError(f"a priority of {priority}; give 0 to {HIGHEST}")
        blocks = list(hashes)
        for block in blocks:
            if not isinstance(block, bytes) or len(block) != HASH_BYTES:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"{block!r} is no hash of a block; give a list of them, as `hashes` of leases has")
        self._given.update(dict.fromkeys(blocks, priority))
        if priority == NORMAL:
            for block in blocks:
                self._given.pop(block, None)
        self._changed.update(dict.fromkeys(blocks))

    def evict(self, n: int) -> list[int]:
        """See `Policy`."""
        self._move_changed()
        return super().evict(n)

    def grow(self, n_slots: int) -> None:
        """See `Policy`."""
        super().grow(n_slots)
        more = np.zeros(n_slots - len(self._priorities), np.int16)
        self._priorities = np.concatenate([self._priorities, more])

    def cached(self, slots: Slots, keys: Sequence[BlockKey], where: Where) -> None:
        """See `Policy`."""
        self._where = where
        effective: list[int] = []
        for at, key in enumerate(keys):
            own = self._given.get(key.hash, NORMAL)
            if at and key.parent == keys[at - 1].hash:
                before = effective[-1]
            else:
                slot = where.get(key.parent, -1)
                before = HIGHEST if slot < 0 else int(self._priorities[slot])
            effective.append(-1 if before < 0 or own < self._threshold else own)
        self._priorities[slots] = effective
        begin = 0
        for at in range(1, len(keys) + 1):
            if at == len(keys) or effective[at] != effective[begin]:
                super().cached(slots[begin:at], keys[begin:at], where)
                begin = at

    def _move_changed(self) -> None:
        """Put cached blocks whose priority was changed into their queues: the ends of chains first, as they go."""
        while self._changed:
            block, _ = self._changed.popitem()
            slot = self._where.get(block, -1)
            if slot < 0 or not self._leaves.stamps.of[slot] or self._priorities[slot] < 0:
                continue  # it is told when it is next cached
            own = self._given.get(block, NORMAL)
            self._priorities[slot] = -1 if own < self._threshold else own
            self._leaves.put(int(self._priorities[slot]), np.array([slot], np.int32))

    def _queue_of(self, slots: Slots, keys: Sequence[BlockKey]) -> int:
        del keys
        return int(self._priorities[slots[0]])

    def _put_back(self, freed: Slots) -> None:
        for slot in freed[::-1]:
            self._leaves.put(int(self._priorities[slot]), np.array([slot], np.int32), is_next=True)
