"""One line for who waits longer than a moment: how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 5.0


class Watch:
    """Counts what is done of `n_items` since it was made; after `PATIENCE_S` it tells once how long all will take."""

    def __init__(self, n_items: int, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._n_items = n_items
        self._tell = tell
        self._clock = clock
        self._began = clock()
        self._n_done = 0
        self._has_told = False

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """These, each counted when the next is asked for."""
        for item in items:
            yield item
            self._n_done += 1
            if not self._has_told and (seconds := self._clock() - self._began) > PATIENCE_S:
                self._has_told = True
                share = self._n_done / self._n_items
                self._tell(f"{share:.0%} of it in {seconds:.0f} s: about {seconds / share:.0f} s in all")
