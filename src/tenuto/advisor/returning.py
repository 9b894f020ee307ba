"""When blocks come back: hazards by class and age, and the score that follows from them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tenuto.advisor.orders import Rows
from tenuto.advisor.table import BlockTable, Floats

N_WAYS = 16
"""Ways in which a request came about, see `way_of`."""
INSIDE, END, LEFT = 0, 1, 2
"""Of a block in its request: followed by others; its last; given up, since a later request went on before it."""
N_TRAITS = 2 * N_WAYS * 3
_N_AGES = 26
_AGES_TOGETHER = 4
_EDGES_S: Floats = 2.0 ** (np.arange(_N_AGES + 1) / 2)  # the first class begins at 0
_PRIOR = 5.0  # requests' worth of belief in a factor of 1
_PRIOR_OF_CLASS = 4.0
_PRIOR_HAZARD = 0.03
_SWEEPS = 4
_MOST_HAZARD = 0.95
_LEAST_SCORE = 1e-12
_YOUNGEST_S = 0.5
_MEMORY = 32768  # requests
HUB = 16
"""So many continuations make a block one that sessions share."""
_NONE: Rows = np.zeros(0, np.int64)


def way_of(n_known: int, n_new: int, n_behind: int, n_children: int) -> int:
    """What kind of request it is, 0 to `N_WAYS` - 1.

    It found `n_known` blocks and added `n_new`. Behind the last one it found, the request that used it before had
    `n_behind` blocks, and `n_children` different ones have followed it. Up to one block behind: the session goes on
    (the last block of a prompt is seldom met again). More: it leaves a known path, as a regenerated answer or a shared
    document does. Where many have gone on, after a system prompt say, it is a new session, told by its length.
    """
    if n_known == 0 or n_children >= HUB:
        return 8 + min(max((n_known + n_new).bit_length() - 1, 0), 7)
    return (0 if n_behind <= 1 else 4) + (n_new > 1) + (n_new > 3) + (n_new > 7)


def traits_of(way: int, n_known: int, n_blocks: int) -> Rows:
    """The class of each block of a request: known before or not, its way, whether it is the last one."""
    traits = np.full(n_blocks, 3 * way + INSIDE, np.int64)
    traits[:n_known] += 3 * N_WAYS
    traits[-1] += END
    return traits


def left(traits: Rows) -> Rows:
    """The classes of the same blocks when they are given up."""
    return traits - traits % 3 + LEFT


class ReturnModel:
    """Learns from blocks that came back, and from those that still wait or are gone, how soon a class returns.

    Ages are in seconds, in half octaves. The hazard of a class at an age is that of all blocks at this age, times a
    factor for each value of each trait, one for each way in each two octaves, and one for each class in these (a
    log-linear Poisson model fitted by iterative scaling, Deming and Stephan 1940; each factor is drawn to 1 by
    a few requests' worth of belief). The score is the Gittins index (J. R. Statist. Soc. B 41, 1979): the most
    uses a second that a block gives for its place, if it is kept until some age and then given up. A request is
    one observation, however long it is.
    """

    def __init__(self) -> None:
        self._events: Floats = np.zeros((N_TRAITS, _N_AGES))
        self._lives: Floats = np.zeros((N_TRAITS, _N_AGES))
        self.n_returns = 0
        """Blocks that came back so far."""
        known, way, place = np.unravel_index(np.arange(N_TRAITS), (2, N_WAYS, 3))
        together = np.arange(_N_AGES) // _AGES_TOGETHER
        n_spans = int(together[-1]) + 1
        each = (np.repeat(known, _N_AGES), np.repeat(way, _N_AGES), np.repeat(place, _N_AGES))
        spans = np.tile(together, N_TRAITS)
        traits = np.repeat(np.arange(N_TRAITS), _N_AGES)
        self._factors: list[tuple[Rows, int, float]] = [
            (each[0], 2, _PRIOR),
            (each[1], N_WAYS, _PRIOR),
            (each[2], 3, _PRIOR),
            (each[1] * n_spans + spans, N_WAYS * n_spans, _PRIOR),
            (traits * n_spans + spans, N_TRAITS * n_spans, _PRIOR_OF_CLASS),
        ]
        self._logs: Floats = np.zeros((N_TRAITS, _N_AGES))
        self.fit(BlockTable(), 0.0, 0)

    def returned(self, table: BlockTable, rows: Rows, now_s: float) -> None:
        """These blocks are used again, now."""
        self.n_returns += len(rows)
        self._count(self._events, table, rows, now_s)

    def ended(self, table: BlockTable, rows: Rows, now_s: float) -> None:
        """These blocks are gone, without having come back."""
        self._count(self._lives, table, rows, now_s)

    def scores(self, table: BlockTable, rows: Rows, now_s: float) -> Floats:
        """Uses a second that each of these blocks is worth, for its place; between two ages it is interpolated."""
        at = np.clip((np.log2(np.maximum(now_s - table.used_s[rows], _YOUNGEST_S)) * 2) - 0.5, 0, _N_AGES - 1.001)
        before = at.astype(np.int64)
        share, traits = at - before, table.trait[rows]
        return np.exp(self._logs[traits, before] * (1 - share) + self._logs[traits, before + 1] * share)

    def fit(self, table: BlockTable, now_s: float, n_requests: int) -> None:
        """Scores by all that was seen; `n_requests` came since the last fit, and what is long ago counts less."""
        lives = self._lives.copy()
        self._count(lives, table, table.all_rows(), now_s)
        ended = self._events + lives
        at_risk = ended[:, ::-1].cumsum(1)[:, ::-1] - lives / 2  # those that end inside lived half of it
        hazards = (self._events.sum(0) + _PRIOR * _PRIOR_HAZARD) / (at_risk.sum(0) + _PRIOR)
        events, expected = self._events.ravel(), (at_risk * hazards).ravel()
        products = np.ones(len(events))
        values = [np.ones(n) for _, n, _ in self._factors]
        for _ in range(_SWEEPS):
            for (which, n, prior), value in zip(self._factors, values, strict=True):
                others = np.bincount(which, expected * products / value[which], n)
                new = (np.bincount(which, events, n) + prior) / (others + prior)
                products *= (new / value)[which]
                value[:] = new
        scores = _gittins(np.minimum(products.reshape(N_TRAITS, _N_AGES) * hazards, _MOST_HAZARD))
        self._logs = np.log(np.maximum(scores, _LEAST_SCORE))
        fading = 0.5 ** (n_requests / _MEMORY)
        self._events *= fading
        self._lives *= fading

    def _count(self, into: Floats, table: BlockTable, rows: Rows, now_s: float) -> None:
        if len(rows):
            cells = table.trait[rows] * _N_AGES + _ages(now_s - table.used_s[rows])
            into += np.bincount(cells, 1 / table.length[rows], into.size).reshape(into.shape)


def _ages(seconds: Floats) -> Rows:
    return _EDGES_S[1:-1].searchsorted(seconds, "right")


def _gittins(hazards: npt.NDArray[np.float64]) -> Floats:
    """The index of each class at the beginning of each age class."""
    chances = hazards[:, :-1]  # the last age has no end
    widths = np.diff(_EDGES_S)[:-1]
    widths[0] = _EDGES_S[1]
    indices = np.zeros(hazards.shape)
    for age in range(chances.shape[1]):
        staying = np.cumprod(1 - chances[:, age:], axis=1)
        before = np.concatenate([np.ones((len(staying), 1)), staying[:, :-1]], axis=1)
        time_s = np.cumsum(before * widths[age:] * (1 - chances[:, age:] / 2), axis=1)
        indices[:, age] = ((1 - staying) / time_s).max(axis=1)
    return indices
