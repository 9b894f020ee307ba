"""When blocks are asked for again, learnt from those that were: also from blocks that are gone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tenuto.pools.policies.remembered import CLASS, LENGTH, TIME, Ints, Picked, Remembered, Words
from tenuto.pools.policies.sketch import hash_words
from tenuto.tokens import BlockHash

Floats = npt.NDArray[np.float64]

USES, NEW, LENGTHS, ENDS = 6, 4, 6, 2
"""Values of each trait of a block: times it was used; blocks that its request added; length of that; is it the last."""
_CLASSES_PER_USE = NEW * LENGTHS * ENDS
N_CLASSES = USES * _CLASSES_PER_USE
N_AGES = 46
N_LEVELS = 33
_STEPS = 2  # of ages, and of levels, in a factor of two
_NORMAL = N_LEVELS // 2
YOUNG = 1e6
_MOST_NOTED = 256
MANY_NEW, LONG = 12, 63
"""Blocks that a request added, and its length, beyond which all are of one class."""
_PRIOR, _PRIOR_HAZARD = 5.0, 0.05  # requests' worth of belief before anything was seen: the older, the rarer
_PRIOR_OF_USES = np.array([1.0, 2.0, 3.0, 4.0, 4.0, 4.0])
_SWEEPS = 4
_LONGEST_MEMORY = 1 << 15

EDGES: Floats = 2.0 ** (6 + np.arange(N_AGES + 1) / _STEPS)
"""Age class b is from EDGES[b] up to EDGES[b + 1], in new blocks; the first begins at 0."""

_LATER = EDGES[1:-1]


def age_classes(ages: Ints) -> Ints:
    """The class of each age."""
    return _LATER.searchsorted(ages, "right")


def group_of(n_new: int, n_known: int, length: int) -> int:
    """What the blocks of a request have in common: it added `n_new` to `n_known` and is `length` long."""
    new = (n_new > 1) + (n_new > 3) + (n_new > MANY_NEW) if n_known else 0
    return new * LENGTHS + min(max(length.bit_length() - 2, 0), LENGTHS - 1)


def classes_of(uses: Ints, group: int) -> Ints:
    """Class of each block of a request, in order; its last one is the end."""
    found = (np.minimum(uses, USES) - 1) * _CLASSES_PER_USE + group * ENDS
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
        self._seen = Remembered()
        self._events: Floats = np.zeros(N_CLASSES * N_AGES)
        self._lives: Floats = np.zeros(N_CLASSES * N_AGES)
        self._memory = _LONGEST_MEMORY
        self._fitted_at = 0
        traits = np.unravel_index(np.arange(N_CLASSES), (USES, NEW, LENGTHS, ENDS))
        self._traits = list(zip(traits, (USES, NEW, LENGTHS, ENDS), strict=True))
        self._noted: list[tuple[Sequence[BlockHash], int, int, int]] = []
        self.scores: list[float] = []
        """Of level x N_AGES + age class: uses per new block."""
        self.fit(0)

    def grow(self, n_slots: int) -> None:
        """The pool has so many slots: remember that much longer."""
        self._seen.grow(n_slots)
        self._memory = max(_LONGEST_MEMORY, 8 * n_slots)

    def level_of(self, uses: int, group: int, is_end: bool) -> int:
        """Half octaves of the factor of a class, from 0 to N_LEVELS - 1."""
        return self._levels[((min(USES, uses)) - 1) * _CLASSES_PER_USE + group * ENDS + is_end]

    def recall(self, words: Words, now: int) -> tuple[Ints, Picked]:
        """These blocks, in chain order, are used now: how often each was before; 0 where it is not remembered.

        A block is used whenever one is that continues it, and at least as often.
        """
        self._book()
        found = np.zeros(len(words), np.int64)
        picked = self._seen.pick(words)
        if not len(picked.places):
            return found, picked
        rows, is_here = self._seen.find(picked)
        if is_here.any():
            here = rows[is_here]
            self._add(self._events, here, now)
            self._seen.rows[picked.places[is_here], CLASS] = -1
            uses = here[:, CLASS] // _CLASSES_PER_USE + 1
            if picked.mask is None:
                found[is_here] = uses
            else:
                where = np.flatnonzero(picked.mask)
                found[where[is_here]] = uses
                last = np.zeros(len(words), np.int64)
                last[where] = where
                found = found[np.maximum.accumulate(last)]  # what is not remembered is as what is before it
            found = np.maximum.accumulate(found[::-1])[::-1]
        return found, picked

    def remember(self, picked: Picked, classes: Ints, length: int, now: int) -> None:
        """These blocks, just recalled, are of these classes; their request has `length`."""
        if len(picked.places):
            if picked.mask is not None:
                classes = classes[picked.mask]
            self._add(self._lives, self._seen.put(picked, now, classes, length), now)

    def note(self, hashes: Sequence[BlockHash], group: int, length: int, now: int) -> None:
        """These blocks, which were never seen before, are of a request that goes on: remember them some time."""
        sampled = self._seen.sample(hashes)
        if sampled:
            self._noted.append((sampled, now, group * ENDS, length))
        if len(self._noted) >= _MOST_NOTED:
            self._book()

    def _book(self) -> None:
        """Remember what was noted."""
        if not self._noted:
            return
        picked = self._seen.pick(hash_words([block for hashes, *_ in self._noted for block in hashes]))
        values = np.array([values for _, *values in self._noted], np.int64)
        values = values.repeat([len(hashes) for hashes, *_ in self._noted], 0)
        if picked.mask is not None:
            values = values[picked.mask]
        self._add(self._lives, self._seen.put(picked, *values.T), self._noted[-1][1])
        self._noted.clear()

    def correct(self, words: Words, classes: Ints) -> None:
        """These blocks are of other classes than was said when they were last used."""
        picked = self._seen.pick(words)
        _, is_here = self._seen.find(picked)
        if picked.mask is not None:
            classes = classes[picked.mask]
        self._seen.rows[picked.places[is_here], CLASS] = classes[is_here]

    def fit(self, now: int) -> None:
        """Levels and scores by all that was seen; what is long ago counts less."""
        self._book()
        events, lives = self._events.copy(), self._lives.copy()
        self._add(lives, self._seen.rows[self._seen.rows[:, CLASS] >= 0], now)
        events, lives = events.reshape(N_CLASSES, N_AGES), lives.reshape(N_CLASSES, N_AGES)
        ended = events + lives
        at_risk = ended[:, ::-1].cumsum(1)[:, ::-1] - lives / 2  # those that end inside lived half of it
        hazards = (events.sum(0) + _PRIOR * _PRIOR_HAZARD) / (at_risk.sum(0) + _PRIOR)
        factors = self._factors(events.sum(1), at_risk @ hazards)
        levels = np.clip(np.rint(_STEPS * np.log2(factors)).astype(np.int64) + _NORMAL, 0, N_LEVELS - 1)
        self._levels: list[int] = levels.tolist()
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

    def _add(self, into: Floats, rows: Ints, now: int) -> None:
        """Add remembered blocks, by class and age; those of one request together are one."""
        if len(rows):
            np.add.at(into, rows[:, CLASS] * N_AGES + age_classes(now - rows[:, TIME]), 1 / rows[:, LENGTH])


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
