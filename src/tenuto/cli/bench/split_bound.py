"""How soon the first token can come when a prompt is loaded up to some place and computed from there. Pure.

All of it from what was measured: what computing the rest of the prompt takes, by where it begins, and what a token
takes to load. Times are in seconds, places in tokens from the prompt's first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time to the first token, and how many tokens are loaded for it."""

    seconds: float
    n_tokens: int


class SplitBounds:
    """Bounds of one prompt.

    `computed_s`: what the whole takes with so many of its tokens there already, for 0, for all of them and for some
    between, straight from one to the next. As later tokens attend to more, the truth lies above such lines, and the
    true bound above ours. Loads end at whole blocks of `block_tokens`, or at the prompt's end.
    """

    def __init__(self, computed_s: Mapping[int, float], load_token_s: float, block_tokens: int) -> None:
        self._known = sorted(computed_s)
        self._seconds = [computed_s[place] for place in self._known]
        n_tokens = self._known[-1]
        self._places: Places = np.append(np.arange(0, n_tokens, block_tokens), n_tokens)
        self._load: Floats = self._places.astype(np.float64) * load_token_s
        self._compute = self._at(self._places)

    def under_first_step(self, step_tokens: int) -> Bound:
        """Of loads that run beside the first step of the computing alone.

        ``min over x of max(load(x), compute(x, x + step)) + compute(x + step, n)``; with a step as long as the prompt
        that is ``max(load(x), compute(x, n))``.
        """
        ends = self._places + step_tokens
        rest = np.where(ends < self._known[-1], self._at(ends), 0.0)
        return self._least(np.maximum(self._load, self._compute - rest) + rest)

    def under_all_steps(self) -> Bound:
        """Of loads that run beside all of the computing: ``min over x of max(load(x), compute(x, n))``."""
        return self._least(np.maximum(self._load, self._compute))

    def one_after_the_other(self) -> Bound:
        """Of loads that computing waits for: ``min over x of load(x) + compute(x, n)``."""
        return self._least(self._load + self._compute)

    def _at(self, places: Places) -> Floats:
        return np.interp(places, self._known, self._seconds)

    def _least(self, seconds: Floats) -> Bound:
        at = int(seconds.argmin())
        return Bound(float(seconds[at]), int(self._places[at]))
