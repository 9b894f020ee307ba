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
        self._freed: list[int] = []  # a heap of places below `_fresh`, each once; some are used again
        self._is_freed = bytearray()  # whether a place is in it
        self._fresh = 0  # behind it, a place that is not used was never used
        self._pins: Counter[int] = Counter()
        self._left: set[int] = set()  # freed while they were read
        self.n_used = 0
        """Places that can't be taken."""
        for place in used:
            self.take(place)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in it, and nobody reads it."""
        return not self.n_used and not self._pins

    def is_used(self, place: int) -> bool:
        """Whether it can't be taken."""
        return place < len(self._used) and bool(self._used[place])

    def is_held(self, place: int) -> bool:
        """Whether something is in it: it is used, and was not freed while it is read."""
        return self.is_used(place) and place not in self._left

    def take(self, place: int) -> None:
        """Use this one, which is free, or was freed while it is read. Raises `InvariantError`."""
        if place in self._left:
            self._left.discard(place)
            return
        if self.is_used(place):
            raise InvariantError(f"place {place} is taken twice")
        if place >= len(self._used):
            more = max(place + 1, 2 * len(self._used)) - len(self._used)
            self._used.extend(bytes(more))
            self._is_freed.extend(bytes(more))
        self._used[place] = 1
        self.n_used += 1

    def take_lowest(self, n_places: int) -> int | None:
        """Use the lowest free one of the first `n_places`; None when there is none."""
        while self._freed and self.is_used(self._freed[0]):
            self._is_freed[heappop(self._freed)] = 0
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
            if not self.is_held(place):
                raise InvariantError(f"place {place} is freed twice")
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

    def held(self) -> list[int]:
        """Those that something is in, in order."""
        return [place for place, is_used in enumerate(self._used) if is_used and place not in self._left]

    @property
    def n_held(self) -> int:
        """Places that something is in."""
        return self.n_used - len(self._left)

    def end(self) -> int:
        """Behind the last one that is used or read."""
        last = max(self._used.rfind(1), max(self._pins, default=-1))
        return last + 1

    def _free(self, place: int) -> None:
        if not self.is_used(place):
            raise InvariantError(f"place {place} is freed twice")
        self._used[place] = 0
        self.n_used -= 1
        if place < self._fresh and not self._is_freed[place]:
            self._is_freed[place] = 1
            heappush(self._freed, place)

    def __repr__(self) -> str:
        return f"<Places: {self.n_used} used, {len(self._pins)} read>"
