"""What computing and loading cost, from what they took. Pure: times are told.

Costs are linear, with weights that are not negative. They are fitted to relative errors: what takes a millisecond
counts as much as what takes a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from tenuto.manager.gate import ComputeCost, Floats, LoadCost

_PER_SIZE = 8
"""Samples kept of each size, a power of two: many small ones do not drive out what large ones have taught."""
_OFF = 1.5
"""A sample is off when it took so many times as long as expected, or so many times less."""
_N_OFF = 5
"""So many in a row that are off the same way, and what was known before is forgotten."""
_GOOD_ERROR = 4e-4
"""Mean square of the relative error, here 2 %, below which no further weight is tried."""
_MUCH_BETTER = 0.8
_LEAST_SPREAD = 0.05
"""Least singular value over the largest: samples that are more alike do not tell two weights apart."""
_COVERED = 4
_EACH = 0
"""Size near none in particular: all samples count alike."""

Weights = tuple[float, ...]


class Samples:
    """Amounts and the seconds they took, the last few of each size."""

    def __init__(self, choices: Sequence[tuple[int, ...]]) -> None:
        """`choices`: amounts, by position, that may have a weight together; the first that fits well is taken."""
        self._choices = choices
        self._by_size: dict[int, deque[tuple[Weights, float]]] = {}
        self._last: deque[tuple[int, Weights, float]] = deque(maxlen=_N_OFF)
        self._n_off = 0
        self._fits: dict[int, Weights] = {}
        """By the size that they are to be right for, since the last sample."""
        self.weights: Weights | None = None
        """As of the last `refit`."""

    def add(self, size: int, amounts: Weights, seconds: float, *, is_trial: bool = False) -> None:
        """Something of `size` took `seconds`.

        What came before is forgotten when several in a row are off, or a trial, made to see how it is now, is faster.
        """
        self._note_off(amounts, seconds)
        self._last.append((size, amounts, seconds))
        is_faster = is_trial and self._n_off < 0
        if is_faster or abs(self._n_off) >= _N_OFF:
            kept = list(self._last)[-1 if is_faster else -_N_OFF :]
            self._by_size.clear()
            self._n_off = 0
        else:
            kept = [(size, amounts, seconds)]
        for of, what, took in kept:
            bucket = self._by_size.setdefault(of.bit_length(), deque(maxlen=_PER_SIZE))
            bucket.append((what, took))
        self._fits.clear()

    def refit(self, near: int = _EACH) -> Weights | None:
        """Seconds for one of each amount; None while nothing is known.

        For something of the size `near` samples of that size count most, others less with each power of two between.
        """
        near = near.bit_length()
        if self._by_size and near not in self._fits:
            self._fits[near] = self._fitted(near)
        self.weights = self._fits.get(near)
        return self.weights

    def _fitted(self, near: int) -> Weights:
        rows = list(chain.from_iterable(self._by_size.values()))
        amounts, seconds = np.array([row[0] for row in rows], float), np.array([row[1] for row in rows])
        sizes = np.repeat(list(self._by_size), [len(bucket) for bucket in self._by_size.values()])
        counts = 1 / (1 + np.abs(sizes - near)) if near else np.ones(len(rows))
        weights = self._fit(amounts / seconds[:, None], counts)
        took = seconds / (amounts @ weights)
        is_usual = took <= _OFF * np.median(took)
        if not is_usual.all():
            weights = self._fit((amounts / seconds[:, None])[is_usual], counts[is_usual])
        return tuple(weights.tolist())

    def largest(self) -> int:
        """The largest size seen, as a power of two that it reaches; 0: none."""
        return 1 << max(self._by_size) - 1 if self._by_size else 0

    def _note_off(self, amounts: Weights, seconds: float) -> None:
        if self.weights is None:
            return
        expected = sum(weight * amount for weight, amount in zip(self.weights, amounts, strict=True))
        if seconds > _OFF * expected:
            self._n_off = max(self._n_off, 0) + 1
        elif seconds * _OFF < expected:
            self._n_off = min(self._n_off, 0) - 1
        else:
            self._n_off = 0

    def _fit(self, table: Floats, counts: Floats) -> Floats:
        """Weights with `table @ weights` near 1 in each row, which counts so much. The first choice has an answer."""
        best, least = np.zeros(table.shape[1]), np.inf
        for columns in self._choices:
            part: Floats = table[:, list(columns)] * counts[:, None]
            scale: Floats = part.max(axis=0)
            answer = _solve(part / scale, counts)
            if answer is None or answer.min() < 0:
                continue
            off: Floats = part / scale @ answer - counts
            error = float(off @ off) / float(counts @ counts)
            if error < _MUCH_BETTER * least:
                best, least = np.zeros(table.shape[1]), error
                best[list(columns)] = answer / scale
            if least < _GOOD_ERROR:
                break
        return best


def _solve(table: Floats, wanted: Floats) -> Floats | None:
    """Least squares; None when the rows are too much alike."""
    solved: Any = np.linalg.lstsq(table, wanted, rcond=_LEAST_SPREAD)
    answer, _, rank, _ = solved
    return answer if rank == table.shape[1] else None


class StepRates:
    """What a step of the engine costs."""

    def __init__(self, step_tokens: int) -> None:
        """`step_tokens`: the most that one step computes; 0: not known."""
        self._step_tokens = step_tokens
        self._samples = Samples([(1,), (0, 1), (1, 2), (0, 1, 2)])

    def add(self, n_tokens: int, n_pairs: int, seconds: float) -> None:
        """A step computed so many tokens, all of them together attending to `n_pairs`."""
        if seconds > 0:
            self._samples.add(n_tokens, (1.0, float(n_tokens), float(n_pairs)), seconds)

    def cost(self, n_tokens: int = _EACH) -> ComputeCost | None:
        """What is known now, as it is right for steps of about `n_tokens` tokens, or of the most that there are."""
        near = min(n_tokens, self._step_tokens) if self._step_tokens else n_tokens
        weights = self._samples.refit(near)
        return None if weights is None else ComputeCost(*weights, step_tokens=self._step_tokens)

    def covers(self, n_tokens: int) -> bool:
        """Whether steps were seen that tell of one, or several, that compute `n_tokens`: not much smaller ones."""
        wanted = min(n_tokens, self._step_tokens) if self._step_tokens else n_tokens
        return self._samples.largest() * _COVERED >= wanted and self._samples.largest() > 0


class LoadRates:
    """What loads from one tier cost."""

    def __init__(self) -> None:
        self._samples = Samples([(1,), (0, 1)])

    def add(self, n_bytes: int, seconds: float, *, is_trial: bool = False) -> None:
        """So many bytes took `seconds`. A trial, made to see how it is now, outweighs all before it if it is faster."""
        if n_bytes > 0 and seconds > 0:
            self._samples.add(n_bytes, (1.0, float(n_bytes)), seconds, is_trial=is_trial)

    def cost(self) -> LoadCost | None:
        """What is known now."""
        weights = self._samples.refit()
        return None if weights is None else LoadCost(*weights)
