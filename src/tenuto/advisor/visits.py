"""Events put together as requests: which blocks a prompt found, and which it added."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from tenuto.advisor.returning import HUB, ReturnModel, left, traits_of, way_of
from tenuto.advisor.table import BlockTable
from tenuto.tokens import BlockHash

_GRACE_S = 30.0  # a request that neither reads nor adds for so long is over
_MOST_OPEN = 1024
_LEAST_FIT = 512  # requests between two fits


class _Visit:
    """One request, while it may still read or add."""

    __slots__ = ("before", "changed_s", "n_behind", "n_children", "n_known", "number", "rows")

    def __init__(self, number: int) -> None:
        self.number = number
        self.before = 0
        """The number of the request that used the last block it found; 0: what that had behind it is given up."""
        self.rows: list[int] = []
        self.n_known = self.n_behind = self.n_children = 0
        self.changed_s = 0.0


class Visits:
    """Reads and additions of one worker, told in order, kept by the block that each request has come to."""

    def __init__(self, table: BlockTable, model: ReturnModel) -> None:
        self._table = table
        self._model = model
        self._open: OrderedDict[BlockHash, _Visit] = OrderedDict()
        self._n_since_fit = self._n_begun = 0

    def read(self, rows: Sequence[int], now_s: float) -> None:
        """Consecutive blocks of one chain are read."""
        visit = self._continued(rows[0], now_s)
        if visit is None or len(visit.rows) > visit.n_known:
            visit = self._begin(self._table.path(rows[0])[:-1], now_s)
        self._use(visit, rows, now_s)
        self._change(visit, now_s)

    def add(self, rows: Sequence[int], now_s: float) -> None:
        """Consecutive blocks of one chain are new."""
        visit = self._continued(rows[0], now_s) or self._begin(self._table.path(rows[0])[:-1], now_s)
        table = self._table
        table.used_s[rows] = now_s
        table.uses[rows] += 1
        visit.rows += rows
        self._change(visit, now_s)

    def forget(self) -> None:
        """All blocks are gone."""
        self._open.clear()

    def _continued(self, row: int, now_s: float) -> _Visit | None:
        """The request that this block continues, which is changed by it."""
        visit = self._open.pop(self._table.parents[row], None)
        return visit if visit is not None and now_s - visit.changed_s <= _GRACE_S else None

    def _begin(self, above: Sequence[int], now_s: float) -> _Visit:
        """A new request. Blocks `above`, which nobody told of, the engine has in its own memory."""
        self._n_begun += 1
        visit = _Visit(self._n_begun)
        if above:
            self._use(visit, above, now_s)
        self._n_since_fit += 1
        if self._n_since_fit >= _LEAST_FIT:
            self._model.fit(self._table, now_s, self._n_since_fit)
            self._n_since_fit = 0
        return visit

    def _use(self, visit: _Visit, rows: Sequence[int], now_s: float) -> None:
        table = self._table
        last = rows[-1]
        columns = np.asarray(rows, np.int64)
        self._model.returned(table, columns, now_s)
        visit.rows += rows
        visit.n_known = len(visit.rows)
        visit.n_behind = int(table.length[last]) - int(table.depth[last]) - 1
        visit.n_children = int(table.n_children[last])
        visit.before = int(table.visit[last])
        table.used_s[columns] = now_s
        table.uses[columns] += 1

    def _change(self, visit: _Visit, now_s: float) -> None:
        table, rows = self._table, np.asarray(visit.rows, np.int64)
        n_new = len(rows) - visit.n_known
        if n_new and visit.before and visit.n_children < HUB:
            given_up = table.behind(visit.before, int(table.depth[rows[visit.n_known - 1]]))
            table.trait[given_up] = left(table.trait[given_up])
            visit.before = 0
        way = way_of(visit.n_known, n_new, visit.n_behind, visit.n_children)
        table.trait[rows] = traits_of(way, visit.n_known, len(rows))
        table.length[rows] = len(rows)
        table.visit[rows] = visit.number
        visit.changed_s = now_s
        self._open[table.hashes[visit.rows[-1]]] = visit
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
