"""The blocks of one worker's disk tier, in columns: 200,000 take about 80 MB."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tenuto.advisor.orders import Rows
from tenuto.tokens import BlockHash

_LEAST_ROWS = 1024

Floats = npt.NDArray[np.float64]


class BlockTable:
    """A row for each block: its place in the prefix tree, its volume, its uses.

    The tree is kept by parents: a block whose parent is not here is a root. `prefix` is a number for each chain group
    (`prefixes` has their hashes). Rows of blocks that are gone are used again.
    """

    def __init__(self) -> None:
        self.rows: dict[BlockHash, int] = {}
        self.hashes: list[BlockHash] = []
        self.parents: list[BlockHash] = []
        self.prefixes: list[BlockHash] = []
        self.volumes: list[str] = []
        self._prefix_numbers: dict[BlockHash, int] = {}
        self._free: list[int] = []
        self.is_here: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.prefix: Rows = np.zeros(0, np.int64)
        self.volume: Rows = np.zeros(0, np.int64)
        self.depth: Rows = np.zeros(0, np.int64)
        self.n_children: Rows = np.zeros(0, np.int64)
        self.uses: Rows = np.zeros(0, np.int64)
        self.trait: Rows = np.zeros(0, np.int64)
        """Class of its last request, see `Traits`."""
        self.visit: Rows = np.zeros(0, np.int64)
        """Number of its last request."""
        self.length: Rows = np.ones(0, np.int64)
        """Blocks of its last request."""
        self.used_s: Floats = np.zeros(0)
        self.held_until_s: Floats = np.zeros(0)
        """Until then an order of it is under way."""

    def __len__(self) -> int:
        return len(self.rows)

    def volume_number(self, name: str) -> int:
        """The number of a volume in the column `volume`."""
        if name not in self.volumes:
            self.volumes.append(name)
        return self.volumes.index(name)

    def add(self, block: BlockHash, parent: BlockHash, prefix: BlockHash, volume: int) -> int:
        """A new block's row."""
        row = self._free.pop() if self._free else len(self.hashes)
        if row == len(self.hashes):
            self.hashes.append(block)
            self.parents.append(parent)
            if row >= len(self.is_here):
                self._grow(max(_LEAST_ROWS, 2 * row))
        self.hashes[row], self.parents[row] = block, parent
        self.rows[block] = row
        number = self._prefix_numbers.get(prefix)
        if number is None:
            number = self._prefix_numbers[prefix] = len(self.prefixes)
            self.prefixes.append(prefix)
        above = self.rows.get(parent)
        if above is not None:
            self.n_children[above] += 1
        self.is_here[row], self.prefix[row], self.volume[row] = True, number, volume
        self.depth[row] = 0 if above is None else self.depth[above] + 1
        self.n_children[row] = self.uses[row] = self.trait[row] = self.visit[row] = 0
        self.length[row], self.used_s[row], self.held_until_s[row] = 1, 0.0, 0.0
        return row

    def remove(self, row: int) -> None:
        """A block is nowhere any more."""
        del self.rows[self.hashes[row]]
        above = self.rows.get(self.parents[row])
        if above is not None:
            self.n_children[above] -= 1
        self.is_here[row] = False
        self._free.append(row)

    def all_rows(self) -> Rows:
        """Of every block."""
        return np.flatnonzero(self.is_here)

    def in_volume(self, volume: str) -> Rows:
        """Of those in a volume."""
        return np.flatnonzero(self.is_here & (self.volume == self.volume_number(volume)))

    def counts(self) -> dict[str, int]:
        """Blocks in each volume."""
        counts = np.bincount(self.volume[self.all_rows()], minlength=len(self.volumes))
        return dict(zip(self.volumes, counts.tolist(), strict=True))

    def behind(self, visit: int, depth: int) -> Rows:
        """The blocks last used by that request, and deeper in their chain than `depth`."""
        return np.flatnonzero(self.is_here & (self.visit == visit) & (self.depth > depth))

    def path(self, row: int) -> list[int]:
        """The rows from the first block of its chain that is here to this one."""
        found = [row]
        while (above := self.rows.get(self.parents[found[-1]])) is not None:
            found.append(above)
        return found[::-1]

    def known(self, hashes: Iterable[BlockHash]) -> list[int]:
        """The rows of those that are here."""
        return [row for row in map(self.rows.get, hashes) if row is not None]

    def names(self, rows: Sequence[int] | Rows) -> list[BlockHash]:
        """The hashes of rows."""
        return [self.hashes[int(row)] for row in rows]

    def _grow(self, n_rows: int) -> None:
        for name in (
            "is_here", "prefix", "volume", "depth", "n_children", "uses", "trait", "visit", "length", "used_s",
            "held_until_s",
        ):  # fmt: skip
            old: npt.NDArray[Any] = getattr(self, name)
            new = np.zeros(n_rows, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
