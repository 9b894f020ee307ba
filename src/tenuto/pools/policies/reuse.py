"""When blocks are asked for again, learnt from those that were: also from blocks that are gone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

USES, NEW, LENGTHS, ENDS = 6, 4, 6, 2
"""Values of each trait of a block: times it was used; blocks that its request added; length of that; is it the last."""
N_CLASSES = USES * NEW * LENGTHS * ENDS
N_AGES = 46
N_LEVELS = 33
_STEPS = 2  # of ages, and of levels, in a factor of two
_NORMAL = N_LEVELS // 2
YOUNG = 1e6
_N_REMEMBERED = 1 << 16
_HORIZON = 4  # pools' worth of new blocks that are remembered, at least
MANY_NEW, LONG = 12, 63
"""Blocks that a request added, and its length, beyond which all are of one class."""
_PRIOR, _PRIOR_HAZARD = 5.0, 0.05  # requests' worth of belief before anything was seen: the older, the rarer
_PRIOR_OF_USES = np.array([1.0, 2.0, 3.0, 4.0, 4.0, 4.0])
_SWEEPS = 4
_LONGEST_MEMORY = 1 << 15

EDGES: Floats = 2.0 ** (6 + np.arange(N_AGES + 1) / _STEPS)
"""Age class b is from EDGES[b] up to EDGES[b + 1], in new blocks; the first begins at 0."""

_LATER = EDGES[1:]


def age_classes(ages: Ints) -> Ints:
    """The class of each age."""
    return np.minimum(np.searchsorted(_LATER, ages, "right"), N_AGES - 1)


def classes_of(uses: Ints, n_new: int, n_known: int, length: int) -> Ints:
    """Class of each block of a request, in order; its last one is the end."""
    new = sum(n_new > most for most in (1, 3, MANY_NEW)) if n_known else 0
    long = min(max(length.bit_length() - 2, 0), LENGTHS - 1)
    found = ((np.minimum(uses - 1, USES - 1) * NEW + new) * LENGTHS + long) * ENDS
    found[-1] += 1
    return found


class ReuseModel:
    """Chance and time of the next use of a block, by its class and by how long it was not used.

    A table of hashes remembers when each block was last used and its class. A block that comes back, here or gone,
    is an event of its class at its age; one that is overwritten, or still waits, has lived so long without. Ages are
    counted in
    new blocks, of which a large pool remembers a sample. From events and lives follow hazards: one for each age, and a
    factor for each value of each trait (a log-linear Poisson model fitted by iterative scaling, Deming and Stephan
    1940), so that few observations do.

    The score of a block is its Gittins index (Gittins, J. R. Statist. Soc. B 41, 1979): the most uses per time that it
    gives if it is kept until some age and then given up. That is hits per slot and time, as EVA (Beckmann,
    Sanchez, HPCA
    2017) and LHD (Beckmann, Chen, Cidon, NSDI 2018) estimate it, but of a block's own future, not of what
    evictions leave.
    """

    def __init__(self) -> None:
        n = _N_REMEMBERED
        self._tags: Words = np.zeros(n, np.uint64)
        self._times: Ints = np.zeros(n, np.int64)
        self._classes: npt.NDArray[np.int16] = np.full(n, -1, np.int16)  # -1: nothing
        self._weights: npt.NDArray[np.float32] = np.zeros(n, np.float32)
        self._uses: npt.NDArray[np.uint8] = np.zeros(n, np.uint8)
        self._events: Floats = np.zeros(N_CLASSES * N_AGES)
        self._lives: Floats = np.zeros(N_CLASSES * N_AGES)
        self._skip = 0
        self._memory = _LONGEST_MEMORY
        self._fitted_at = 0
        traits = np.unravel_index(np.arange(N_CLASSES), (USES, NEW, LENGTHS, ENDS))
        self._traits = list(zip(traits, (USES, NEW, LENGTHS, ENDS), strict=True))
        self.levels: Ints = np.zeros(N_CLASSES, np.int64)
        """Of each class: half octaves of its factor, from 0 to N_LEVELS - 1."""
        self.scores: list[float] = []
        """Of level x N_AGES + age class: uses per new block."""
        self.fit(0)

    def grow(self, n_slots: int) -> None:
        """The pool has so many slots: remember that much longer."""
        self._skip = max((_HORIZON * n_slots - 1) // _N_REMEMBERED, 0)
        self._skip = (1 << self._skip.bit_length()) - 1  # of so many more hashes, one is remembered
        self._memory = max(_LONGEST_MEMORY, 8 * n_slots)

    def recall(self, words: Words, now: int) -> Ints:
        """These blocks are used now: how often each was before; 0 where it is not remembered."""
        is_sampled = self.are_sampled(words)
        found = np.zeros(len(words), np.int64)
        if not is_sampled.any():
            return found
        picked = words[is_sampled]
        at = self._places(picked)
        is_here = (self._tags[at] == picked) & (self._classes[at] >= 0)
        self._count(self._events, at[is_here], now)
        self._count(self._lives, at[~is_here & (self._classes[at] >= 0)], now)
        self._classes[at] = -1
        found[is_sampled] = np.where(is_here, self._uses[at], 0)
        if self._skip:  # a chain's blocks are used together: what is not remembered is as what is before it
            last = np.maximum.accumulate(np.where(is_sampled, np.arange(len(words)), 0))
            found = np.where(is_sampled[last], found[last], 0)
        return found

    def remember(self, words: Words, classes: Ints, uses: Ints, weight: float, now: int) -> None:
        """These blocks, just recalled, are of these classes."""
        is_sampled = self.are_sampled(words)
        if is_sampled.any():
            words = words[is_sampled]
            at = self._places(words)
            self._tags[at], self._times[at], self._weights[at] = words, now, weight
            self._classes[at], self._uses[at] = classes[is_sampled], uses[is_sampled]

    def correct(self, words: Words, classes: Ints) -> None:
        """These blocks are of other classes than was said when they were last used."""
        is_sampled = self.are_sampled(words)
        if is_sampled.any():
            words, classes = words[is_sampled], classes[is_sampled]
            at = self._places(words)
            is_here = (self._tags[at] == words) & (self._classes[at] >= 0)
            self._classes[at[is_here]] = classes[is_here]

    def fit(self, now: int) -> None:
        """Levels and scores by all that was seen; what is long ago counts less."""
        events, lives = self._events.copy(), self._lives.copy()
        self._count(lives, np.flatnonzero(self._classes >= 0), now)
        events, lives = events.reshape(N_CLASSES, N_AGES), lives.reshape(N_CLASSES, N_AGES)
        ended = events + lives
        at_risk = ended[:, ::-1].cumsum(1)[:, ::-1] - lives / 2  # those that end inside lived half of it
        hazards = (events.sum(0) + _PRIOR * _PRIOR_HAZARD) / (at_risk.sum(0) + _PRIOR)
        factors = self._factors(events.sum(1), at_risk @ hazards)
        self.levels = np.clip(np.rint(_STEPS * np.log2(factors)).astype(np.int64) + _NORMAL, 0, N_LEVELS - 1)
        self.scores = gittins_indices(hazards).ravel().tolist()
        fading = 0.5 ** ((now - self._fitted_at) / self._memory)
        self._events *= fading
        self._lives *= fading
        self._fitted_at = now

    def _factors(self, events: Floats, expected: Floats) -> Floats:
        """Of each class, the product of one for each of its traits, so that events are as expected for each value."""
        factors = np.ones(N_CLASSES)
        values = [np.ones(n) for _, n in self._traits]
        for _ in range(_SWEEPS):
            for (trait, n), value, prior in zip(
                self._traits, values, (_PRIOR_OF_USES, *(np.ones(n) for _, n in self._traits[1:])), strict=True
            ):
                others = expected * factors / value[trait]
                new = (np.bincount(trait, events, n) + _PRIOR * prior) / (np.bincount(trait, others, n) + _PRIOR)
                factors *= (new / value)[trait]
                value[:] = new
        return factors

    def _count(self, into: Floats, at: Ints, now: int) -> None:
        """Add what the table has at these places, by class and age."""
        if len(at):
            cells = self._classes[at].astype(np.int64) * N_AGES + age_classes(now - self._times[at])
            into += np.bincount(cells, self._weights[at], len(into))

    def are_sampled(self, words: Words) -> npt.NDArray[np.bool_]:
        """Which of these blocks are remembered at all."""
        return (words >> np.uint64(40) & np.uint64(self._skip)) == 0

    def _places(self, words: Words) -> Ints:
        return (words >> np.uint64(16) & np.uint64(_N_REMEMBERED - 1)).astype(np.int64)


def gittins_indices(hazards: Floats) -> Floats:
    """The index of each level (rows) at the beginning of each age class, from the hazard of each class at level 1."""
    rates = 2.0 ** ((np.arange(N_LEVELS) - _NORMAL) / _STEPS)
    chances = np.minimum(np.outer(rates, hazards), 0.95)[:, :-1]  # the last class has no end
    widths = np.diff(EDGES)[:-1]
    indices = np.zeros((N_LEVELS, N_AGES))
    for age in range(N_AGES - 1):
        staying = np.cumprod(1 - chances[:, age:], axis=1)
        before = np.concatenate([np.ones((N_LEVELS, 1)), staying[:, :-1]], axis=1)
        time = np.cumsum(before * widths[age:] * (1 - chances[:, age:] / 2), axis=1)
        indices[:, age] = ((1 - staying) / time).max(axis=1)
    indices[:, 0] += YOUNG
    return indices
