"""The places of one volume: which are used, and which are being read. Not thread-safe: under the agent's lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush

from tenuto.errors import InvariantError


class Places:
    """Numbers from 0; a place is used from `take` to `free`, and for as long as somebody reads it (`pin`)."""

    def __init__(self, used: Iterable[int] = ()) -> None:
        self._used = bytearray()
        self._freed: list[int] = []  # a heap of places below `_fresh`; some are used again
        self._fresh = 0  # behind it, a place that is not used was never used
        self._pins: Counter[int] = Counter()
        self._left: set[int] = set()  # freed while they were read
        self.n_used = 0
        """Places that can't be taken."""
        for place in used:
            self.take(place)

    def is_used(self, place: int) -> bool:
        """Whether it can't be taken."""
        return place < len(self._used) and bool(self._used[place])

    def take(self, place: int) -> None:
        """Use this one, which is free. Raises `InvariantError`."""
        if self.is_used(place):
            raise InvariantError(f"place {place} is taken twice")
        if place >= len(self._used):
            self._used.extend(bytes(max(place + 1, 2 * len(self._used)) - len(self._used)))
        self._used[place] = 1
        self.n_used += 1

    def take_lowest(self, n_places: int) -> int | None:
        """Use the lowest free one of the first `n_places`; None when there is none."""
        while self._freed and self.is_used(self._freed[0]):
            heappop(self._freed)
        while self.is_used(self._fresh):
            self._fresh += 1
        lowest = min(self._fresh, self._freed[0]) if self._freed else self._fresh
        if lowest >= n_places:
            return None
        self.take(lowest)
        return lowest

    def free(self, place: int) -> None:
        """It is used no more; what still reads it keeps it."""
        if place in self._pins:
            self._left.add(place)
        else:
            self._free(place)

    def pin(self, place: int) -> None:
        """Somebody reads it."""
        self._pins[place] += 1

    def unpin(self, place: int) -> None:
        """One reader less."""
        self._pins[place] -= 1
        if not self._pins[place]:
            del self._pins[place]
            if place in self._left:
                self._left.discard(place)
                self._free(place)

    def used(self) -> list[int]:
        """Those that can't be taken, in order."""
        return [place for place, is_used in enumerate(self._used) if is_used]

    def end(self) -> int:
        """Behind the last one that is used or read."""
        last = max(self._used.rfind(1), max(self._pins, default=-1))
        return last + 1

    def _free(self, place: int) -> None:
        if not self.is_used(place):
            raise InvariantError(f"place {place} is freed twice")
        self._used[place] = 0
        self.n_used -= 1
        if place < self._fresh:
            heappush(self._freed, place)

    def __repr__(self) -> str:
        return f"<Places: {self.n_used} used, {len(self._pins)} read>"
