"""Which slot's block continues which: so that a chain loses its end before its beginning."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tenuto.pools.policies.protocol import Slots


class Links:
    """Parent and number of children of each slot. A link ends when either end loses its content."""

    def __init__(self) -> None:
        self.parents: Slots = np.zeros(0, np.int32)
        """-1: none, or not here."""
        self.n_children: Slots = np.zeros(0, np.int32)
        self._lives: npt.NDArray[np.int32] = np.zeros(0, np.int32)  # contents a slot has had: a link is to one of them
        self._lives_of_parent: npt.NDArray[np.int32] = np.zeros(0, np.int32)

    def grow(self, n_slots: int) -> None:
        """There are `n_slots` slots from now on."""
        more = np.zeros(n_slots - len(self.parents), np.int32)
        self.parents = np.concatenate([self.parents, more - 1])
        self.n_children = np.concatenate([self.n_children, more])
        self._lives = np.concatenate([self._lives, more])
        self._lives_of_parent = np.concatenate([self._lives_of_parent, more])

    def link(self, slots: Slots, parents: Slots) -> None:
        """These slots continue those; links that are there stay."""
        change = (parents >= 0) & (
            (self.parents[slots] != parents) | (self._lives_of_parent[slots] != self._lives[parents])
        )
        if not change.all():
            slots, parents = slots[change], parents[change]
        if len(slots):
            self._cut(slots)
            self.parents[slots] = parents
            self._lives_of_parent[slots] = self._lives[parents]
            np.add.at(self.n_children, parents, 1)

    def lose(self, slots: Slots) -> Slots:
        """These slots have lost their content; their parents that have no children any more."""
        above = self._cut(slots)
        self.parents[slots] = -1
        self.n_children[slots] = 0
        self._lives[slots] += 1
        return above[self.n_children[above] == 0]

    def _cut(self, slots: Slots) -> Slots:
        """Undo the links to these slots' parents; the parents."""
        parents = self.parents[slots]
        is_linked = (parents >= 0) & (self._lives_of_parent[slots] == self._lives[parents])
        above = parents[is_linked]
        np.subtract.at(self.n_children, above, 1)
        return above
