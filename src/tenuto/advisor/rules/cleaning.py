"""Blocks that nobody will ask for, and room that nobody has."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tenuto.advisor.orders import Compact, Drop, Order, Rows
from tenuto.advisor.placement import View, VolumeState


class Prune:
    """Drops blocks not used for `most_age_s` (0: at any age), and the coldest of a volume beyond `most_share`.

    That is of its places. A block goes with or after those that continue it.
    """

    def __init__(self, most_age_s: float = 0.0, most_share: float = 1.0) -> None:
        self._most_age_s = most_age_s
        self._most_share = most_share

    def plan(self, view: View) -> Iterable[Order]:
        """See `Rule`."""
        table = view.table
        chosen: list[Rows] = []
        if self._most_age_s:
            rows = table.all_rows()
            chosen.append(rows[view.now_s - table.used_s[rows] > self._most_age_s])
        for volume in view.volumes if self._most_share < 1 else ():
            rows = table.in_volume(volume.name)
            n_over = len(rows) - int(self._most_share * volume.n_places)
            if n_over > 0:
                chosen.append(rows[np.lexsort((-table.depth[rows], view.scores(rows)))[:n_over]])
        if chosen:
            rows = self._childless(view, view.free(np.unique(np.concatenate(chosen))))
            if len(rows):
                yield Drop(rows)

    def _childless(self, view: View, rows: Rows) -> Rows:
        """Those whose children are all among them, the ends of chains first."""
        table = view.table
        chosen: set[int] = set(rows.tolist())
        left: dict[int, int] = {}
        deepest_first: list[int] = rows[np.argsort(-table.depth[rows], kind="stable")].tolist()
        found = [row for row in deepest_first if not table.n_children[row]]
        for row in found:  # which grows: a block whose last child is there comes behind it
            above = table.rows.get(table.parents[row])
            if above is not None and above in chosen:
                left[above] = left.get(above, int(table.n_children[above])) - 1
                if not left[above]:
                    found.append(above)
        return np.asarray(found, np.int64)


class CompactFiles:
    """Compacts a volume of whose files more than `least_free_share` is free, at most once in `every_s`."""

    def __init__(self, least_free_share: float = 0.5, every_s: float = 60.0) -> None:
        self._least_free_share = least_free_share
        self._every_s = every_s
        self._last_s: dict[str, float] = {}

    def plan(self, view: View) -> Iterable[Order]:
        """See `Rule`."""
        for volume in view.volumes:
            n_free = self._n_free(volume, view.block_bytes)
            is_due = view.now_s - self._last_s.get(volume.name, -np.inf) >= self._every_s
            if is_due and n_free * view.block_bytes > self._least_free_share * volume.file_bytes > 0:
                self._last_s[volume.name] = view.now_s
                yield Compact(volume.name, min(n_free, volume.n_blocks))

    @staticmethod
    def _n_free(volume: VolumeState, block_bytes: int) -> int:
        return max(0, volume.file_bytes // max(1, block_bytes) - volume.n_blocks)
