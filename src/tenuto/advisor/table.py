"""The blocks of one worker's disk tier, in columns: 200,000 take about 80 MB."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tenuto.advisor.orders import Rows
from tenuto.tokens import BlockHash

_LEAST_ROWS = 1024
_NOBODY = BlockHash(b"")

Floats = npt.NDArray[np.float64]


class _Groups:
    """Numbers of chain groups, while they have blocks."""

    def __init__(self) -> None:
        self.prefixes: list[BlockHash] = []
        self._n_blocks: list[int] = []
        self._numbers: dict[BlockHash, int] = {}
        self._free: list[int] = []

    def join(self, prefix: BlockHash) -> int:
        number = self._numbers.get(prefix)
        if number is None:
            number = self._free.pop() if self._free else len(self.prefixes)
            if number == len(self.prefixes):
                self.prefixes.append(prefix)
                self._n_blocks.append(0)
            self.prefixes[number] = prefix
            self._numbers[prefix] = number
        self._n_blocks[number] += 1
        return number

    def leave(self, number: int) -> None:
        self._n_blocks[number] -= 1
        if not self._n_blocks[number]:
            del self._numbers[self.prefixes[number]]
            self._free.append(number)


class BlockTable:
    """A row for each block: its place in the prefix tree, its volume, its uses.

    The tree is kept by parents: a block whose parent is not here, or that names itself, is a root. Children are counted
    for absent parents, too: blocks come and go in any order. `prefix` is a number for each chain group (`prefixes` has
    their hashes). Rows of blocks and numbers of groups that are gone are used again.
    """

    def __init__(self) -> None:
        self.rows: dict[BlockHash, int] = {}
        self.hashes: list[BlockHash] = []
        self.parents: list[BlockHash] = []
        self._groups = _Groups()
        self.prefixes = self._groups.prefixes
        self.volumes: list[str] = []
        self._children_of_absent: dict[BlockHash, int] = {}
        self._is_unordered = False
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
        if parent == block:
            parent = _NOBODY
        row = self._free.pop() if self._free else len(self.hashes)
        if row == len(self.hashes):
            self.hashes.append(block)
            self.parents.append(parent)
            if row >= len(self.is_here):
                self._grow(max(_LEAST_ROWS, 2 * row))
        self.hashes[row], self.parents[row] = block, parent
        self.rows[block] = row
        self.is_here[row], self.prefix[row], self.volume[row] = True, self._groups.join(prefix), volume
        self.uses[row] = self.trait[row] = self.visit[row] = 0
        self.length[row], self.used_s[row], self.held_until_s[row] = 1, 0.0, 0.0
        self.n_children[row] = self._children_of_absent.pop(block, 0)
        self._is_unordered |= bool(self.n_children[row])
        above = self.rows.get(parent)
        self.depth[row] = 0 if above is None else self.depth[above] + 1
        self._count_child(parent, 1)
        return row

    def remove(self, row: int) -> None:
        """A block is nowhere any more."""
        block = self.hashes[row]
        del self.rows[block]
        if self.n_children[row]:
            self._children_of_absent[block] = int(self.n_children[row])
        self._count_child(self.parents[row], -1)
        self.is_here[row] = False
        self._free.append(row)
        self._groups.leave(int(self.prefix[row]))

    def order(self) -> None:
        """Count depths anew where a block came after those that continue it, by doubled steps towards the roots."""
        if not self._is_unordered:
            return
        self._is_unordered = False
        rows = self.all_rows()
        up = np.full(len(self.is_here), -1, np.int64)
        numbers: list[int] = rows.tolist()
        up[rows] = [self.rows.get(self.parents[row], -1) for row in numbers]
        depth = (up >= 0).astype(np.int64)
        for _ in range(len(rows).bit_length()):  # a cycle, which is nonsense, ends there too
            below = np.flatnonzero(up >= 0)
            if not len(below):
                break
            depth[below] += depth[up[below]]
            up[below] = up[up[below]]
        self.depth[rows] = depth[rows]

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
        """The rows from the first block of its chain that is here to this one; a cycle is cut where it closes."""
        found: dict[int, None] = {row: None}
        above = self.rows.get(self.parents[row])
        while above is not None and above not in found:
            found[above] = None
            above = self.rows.get(self.parents[above])
        return list(found)[::-1]

    def known(self, hashes: Iterable[BlockHash]) -> list[int]:
        """The rows of those that are here."""
        return [row for row in map(self.rows.get, hashes) if row is not None]

    def names(self, rows: Sequence[int] | Rows) -> list[BlockHash]:
        """The hashes of rows."""
        return [self.hashes[int(row)] for row in rows]

    def _count_child(self, parent: BlockHash, n: int) -> None:
        above = self.rows.get(parent)
        if above is not None:
            self.n_children[above] += n
            return
        n_left = self._children_of_absent.get(parent, 0) + n
        if n_left > 0:
            self._children_of_absent[parent] = n_left
        else:
            self._children_of_absent.pop(parent, None)

    def _grow(self, n_rows: int) -> None:
        for name in (
            "is_here", "prefix", "volume", "depth", "n_children", "uses", "trait", "visit", "length", "used_s",
            "held_until_s",
        ):  # fmt: skip
            old: npt.NDArray[Any] = getattr(self, name)
            new = np.zeros(n_rows, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
