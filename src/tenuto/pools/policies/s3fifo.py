"""S3-FIFO."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from tenuto.pools.policies.protocol import Slots, Where
from tenuto.tokens import BlockHash, BlockKey

_SMALL = 0.1  # of all slots
_MOST_USES = 3
_MOVES_AT = 2  # uses in the small queue that take a block to the main one: more than one, as in the paper


class S3FIFO:
    """Three first-in first-out queues: small, main and a ghost of hashes.

    Yang, Zhang, Qiu, Yue, Vinayak, "FIFO queues are all you need for cache eviction", SOSP 2023: new blocks enter
    a small
    queue of a tenth of the slots, those used there go to the main one, the others leave a ghost; what comes back while
    its ghost is remembered enters the main queue, where a used block goes round once more for each use.
    """

    def __init__(self) -> None:
        self._n_slots = 0
        self._uses: list[int] = []
        self._hashes: list[BlockHash] = []  # empty: no content
        self._is_cached = bytearray()
        self._is_main = bytearray()
        self._is_queued = bytearray()
        self._lives: list[int] = []
        self._small: deque[tuple[int, int]] = deque()  # (slot, which of its contents)
        self._main: deque[tuple[int, int]] = deque()
        self._n_small = 0
        self._ghost: OrderedDict[BlockHash, None] = OrderedDict()

    def grow(self, n_slots: int) -> None:
        """See `Policy`."""
        more = n_slots - self._n_slots
        self._n_slots = n_slots
        self._uses += [0] * more
        self._lives += [0] * more
        self._hashes += [BlockHash(b"")] * more
        self._is_cached += bytes(more)
        self._is_main += bytes(more)
        self._is_queued += bytes(more)

    def cached(self, slots: Slots, keys: Sequence[BlockKey], where: Where) -> None:
        """See `Policy`."""
        del where
        for slot, key in zip(_numbers(slots[::-1]), reversed(keys), strict=True):
            self._is_cached[slot] = 1
            if self._hashes[slot]:
                self._uses[slot] = min(self._uses[slot] + 1, _MOST_USES)
                if not self._is_queued[slot]:
                    self._enqueue(slot)
                continue
            self._hashes[slot] = key.hash
            self._uses[slot] = 0
            is_back = key.hash in self._ghost
            if is_back:
                del self._ghost[key.hash]
            self._is_main[slot] = is_back
            self._n_small += not is_back
            self._enqueue(slot)

    def leased(self, slots: Slots) -> None:
        """See `Policy`."""
        for slot in _numbers(slots):
            self._is_cached[slot] = 0

    def forgotten(self, slots: Slots) -> None:
        """See `Policy`."""
        for slot in _numbers(slots):
            self._lose(slot)

    def evict(self, n: int) -> list[int]:
        """See `Policy`."""
        victims: list[int] = []
        while len(victims) < n and (self._small or self._main):
            is_small = bool(self._small) and (self._n_small > _SMALL * self._n_slots or not self._main)
            slot, life = (self._small if is_small else self._main).popleft()
            if life != self._lives[slot]:
                continue
            if not self._is_cached[slot]:
                self._is_queued[slot] = 0  # queued again when it is cached again
            elif self._uses[slot] >= (_MOVES_AT if is_small else 1):
                self._uses[slot] = 0 if is_small else self._uses[slot] - 1
                self._n_small -= is_small
                self._is_main[slot] = 1
                self._main.append((slot, life))
            else:
                if is_small:
                    self._remember(self._hashes[slot])
                self._lose(slot)
                victims.append(slot)
        return victims

    def _enqueue(self, slot: int) -> None:
        self._is_queued[slot] = 1
        (self._main if self._is_main[slot] else self._small).append((slot, self._lives[slot]))

    def _remember(self, block: BlockHash) -> None:
        self._ghost[block] = None
        if len(self._ghost) > self._n_slots:
            self._ghost.popitem(last=False)

    def _lose(self, slot: int) -> None:
        if self._hashes[slot]:
            self._n_small -= not self._is_main[slot]
        self._hashes[slot] = BlockHash(b"")
        self._is_cached[slot] = self._is_main[slot] = self._is_queued[slot] = 0
        self._lives[slot] += 1


def _numbers(slots: Slots) -> list[int]:
    numbers: list[int] = slots.tolist()
    return numbers
