"""First in, first out: what came into the pool longest ago leaves it first, however often it was used since."""

import heapq
import itertools


class Fifo:
    """See `tenuto.pools.Policy`."""

    def __init__(self):
        self._numbers = itertools.count()
        self._came = {}  # by slot: its block, and the number of its coming
        self._evictable = set()
        self._queue = []  # (number, slot), each once; stale where the slot is leased or has another block by now
        self._queued = set()

    def grow(self, n_slots):
        """Slots need no preparation."""

    def cached(self, slots, blocks, *_):
        for slot, block in zip(reversed(slots.tolist()), reversed(blocks), strict=True):  # a chain's tail goes first
            known, number = self._came.get(slot, (None, 0))
            if known != block:
                number = next(self._numbers)
                self._came[slot] = block, number
            self._evictable.add(slot)
            if number not in self._queued:
                self._queued.add(number)
                heapq.heappush(self._queue, (number, slot))

    def leased(self, slots):
        self._evictable.difference_update(slots.tolist())

    def forgotten(self, slots):
        self.leased(slots)
        for slot in slots.tolist():
            self._came.pop(slot, None)

    def evict(self, n):
        victims = []
        while self._queue and len(victims) < n:
            number, slot = heapq.heappop(self._queue)
            self._queued.discard(number)
            if slot in self._evictable and self._came[slot][1] == number:
                self._evictable.discard(slot)
                victims.append(slot)
        for slot in victims:
            del self._came[slot]
        return victims


if __name__ == "__main__":
    import tenuto

    layout = tenuto.Layout("contiguous", 2, n_layers=1, outer_dim=2, page_tokens=4, inner_dim=8, dtype="float32")
    settings = {"tiers.host.capacity": "1 MiB"}
    with tenuto.open_cache(layout, model="demo", policies={"device": Fifo()}, settings=settings) as cache:
        for first in (0, 10, 20):
            with cache.allocate() as blocks:
                blocks.apply(range(first, first + 4))
                blocks.register().release()
        print(cache)
