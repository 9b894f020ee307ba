"""How long a bench may take, and what it says meanwhile: lines on standard error, with the seconds since its start."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """`budget_s` from its making on. A round is begun only when one as long as the longest before would end in time."""

    budget_s: float
    now: Callable[[], float] = time.monotonic
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = self.now()

    @property
    def spent_s(self) -> float:
        """Since its start."""
        return self.now() - self.began_s

    def say(self, text: str) -> None:
        """One line of progress."""
        print(f"[{self.spent_s:6.1f} s] {text}", file=sys.stderr, flush=True)

    def rounds(self, what: str, n: int, *, share: float = 1.0, least: int = 1, expected_s: float = 0.0) -> Rounds:
        """Up to `n` rounds, all ended before `share` of the whole is spent; the first `least` are always made.

        `expected_s`: what one takes at least, as long as none was made.
        """
        return Rounds(self, what, n, share, least, expected_s)


class Rounds:
    """Iterates over round numbers; `n_made` afterwards."""

    def __init__(self, budget: Budget, what: str, n: int, share: float, least: int, expected_s: float) -> None:
        self._budget, self._what, self._n, self._share, self._least = budget, what, n, share, least
        self._longest_s = expected_s
        self._began_s = 0.0
        self.n_made = 0

    def __iter__(self) -> Rounds:
        return self

    def __next__(self) -> int:
        now_s = self._budget.spent_s
        if self.n_made:
            self._longest_s = max(self._longest_s, now_s - self._began_s)
        is_over = self.n_made >= self._least and now_s + self._longest_s > self._budget.budget_s * self._share
        if self.n_made == self._n or is_over:
            why = "; no time for more" if self.n_made < self._n else ""
            self._budget.say(f"{self._what}: {self.n_made} rounds made{why}")
            raise StopIteration
        self._began_s = now_s
        self.n_made += 1
        self._budget.say(f"{self._what}: round {self.n_made} of {self._n}")
        return self.n_made - 1
