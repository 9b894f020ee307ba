"""One worker's volumes and blocks as rules see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenuto.advisor.agents import HOME
from tenuto.advisor.index import WorkerIndex
from tenuto.advisor.orders import Rows
from tenuto.advisor.table import Floats

_RESERVE = 0.01  # of a volume that the engine writes to: so that its next blocks have room
_IS_EMPTY = 0.1  # a volume with more spare room than that is filled with whatever is best
_NONE: Rows = np.zeros(0, np.int64)


@dataclass(slots=True)
class VolumeState:
    """A volume. `room`: blocks that may still be moved to it, beside those that rules have ordered."""

    name: str
    n_places: int
    room: int
    n_blocks: int
    file_bytes: int
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """What should come to a volume, the best first, and what should leave it, the worst first."""

    arriving: Rows
    leaving: Rows


class View:
    """What there is at one moment. `volumes`: the fastest first. `touched`: blocks read or stored since the last."""

    def __init__(
        self, index: WorkerIndex, volumes: Sequence[VolumeState], touched: Rows, block_bytes: int, now_s: float
    ) -> None:
        self.table = index.table
        self.volumes = tuple(volumes)
        self.block_bytes = block_bytes
        self.now_s = now_s
        self._model = index.model
        self._touched = touched
        self._changes: dict[str, Changes] = {}

    def scores(self, rows: Rows) -> Floats:
        """Uses a second that each block is worth, for its place."""
        return self._model.scores(self.table, rows, self.now_s)

    def free(self, rows: Rows) -> Rows:
        """Those that no order is under way for."""
        return rows[self.table.held_until_s[rows] <= self.now_s]

    def changes(self, at: int) -> Changes:
        """For volume `at`: it should hold the best of what it has, and of what was touched in slower volumes."""
        volume = self.volumes[at]
        if volume.name not in self._changes:
            self._changes[volume.name] = self._changes_of(at)
        return self._changes[volume.name]

    def _changes_of(self, at: int) -> Changes:
        volume, table = self.volumes[at], self.table
        here = table.in_volume(volume.name)
        if volume.is_draining:
            return Changes(_NONE, _NONE)
        slower = [table.volume_number(other.name) for other in self.volumes[at + 1 :]]
        n_kept = volume.n_places - (int(np.ceil(_RESERVE * volume.n_places)) if volume.name == HOME else 0)
        n_fit = n_kept - len(here)
        come = self._touched
        if n_fit - len(come) > _IS_EMPTY * volume.n_places:
            come = table.all_rows()
        come = self.free(come[np.isin(table.volume[come], slower)])
        for faster in range(at):
            come = np.setdiff1d(come, self.changes(faster).arriving)
        if len(come) > n_fit:
            rows = np.concatenate([here, come])
            scores = self.scores(rows)
            is_kept = np.zeros(len(rows), np.bool_)
            is_kept[_best(scores, n_kept, table.used_s[rows])] = True
            come, leave = come[is_kept[len(here) :]], here[~is_kept[: len(here)]]
        else:
            leave = _NONE
        return Changes(_sorted(come, -self.scores(come)), self.free(_sorted(leave, self.scores(leave))))


def _best(scores: Floats, n: int, used_s: Floats) -> Rows:
    """Places of the `n` largest; of equal ones, those used last."""
    if n >= len(scores):
        return np.arange(len(scores))
    worst = np.partition(scores, len(scores) - n - 1)[len(scores) - n - 1] if n else np.inf
    sure = np.flatnonzero(scores > worst)
    equal = np.flatnonzero(scores == worst)
    return np.concatenate([sure, equal[np.argsort(-used_s[equal], kind="stable")[: max(0, n - len(sure))]]])


def _sorted(rows: Rows, keys: Floats) -> Rows:
    return rows[np.argsort(keys, kind="stable")]
