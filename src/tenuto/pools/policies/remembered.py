"""Blocks that were used lately, by hash, whether they are in the pool or not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tenuto.tokens import BlockHash

Words = npt.NDArray[np.uint64]
"""The first eight bytes of hashes."""
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_N_PLACES = 1 << 16
_HORIZON = 2  # pools' worth of new blocks that are remembered, at least
TIME, CLASS, LENGTH = 1, 2, 3
"""Columns of what is remembered of a block, beside its word: when it was used (in new blocks), its class (-1: it was
used again since), the blocks of its request."""


class Picked(NamedTuple):
    """Those of some blocks that can be remembered; `mask`: which they are, none: all."""

    words: Words
    places: Ints
    mask: Mask | None


class Remembered:
    """A table with one place for each block, which it shares with others: the last one used is remembered.

    A large pool remembers a sample of all blocks, chosen by hash.
    """

    def __init__(self) -> None:
        self.rows: Ints = np.full((_N_PLACES, 4), -1, np.int64)
        self._skip = np.uint64(0)
        self._are_picked = bytes([1] * 256)
        """Whether a hash may be picked, by its sixth byte."""

    def grow(self, n_slots: int) -> None:
        """The pool has so many slots: remember that much longer."""
        skip = max((_HORIZON * n_slots - 1) // _N_PLACES, 0)
        self._skip = np.uint64((1 << skip.bit_length()) - 1)  # of so many more hashes, one is remembered
        low = int(self._skip) & 0xFF
        self._are_picked = bytes(not byte & low for byte in range(256))

    def pick(self, words: Words) -> Picked:
        """Where these are, or may be."""
        mask = None
        if self._skip:
            mask = (words >> np.uint64(40) & self._skip) == 0
            words = words[mask]
        return Picked(words, (words >> np.uint64(16) & np.uint64(_N_PLACES - 1)).astype(np.int64), mask)

    def sample(self, hashes: Sequence[BlockHash]) -> Sequence[BlockHash]:
        """Those that `pick` may pick: quicker where most of a few are not."""
        data = b"".join(hashes)
        if not self._are_picked[-1] and len(data) == 16 * len(hashes):
            return list(compress(hashes, data[5::16].translate(self._are_picked)))
        return hashes

    def find(self, picked: Picked) -> tuple[Ints, Mask]:
        """Rows at their places, and which of them are theirs."""
        rows = self.rows[picked.places]
        return rows, (rows[:, 0] == picked.words.view(np.int64)) & (rows[:, CLASS] >= 0)

    def put(self, picked: Picked, times: Ints | int, classes: Ints | int, lengths: Ints | int) -> Ints:
        """Remember these, used at these times; rows of others that are forgotten for it."""
        before = self.rows[picked.places]
        rows = np.empty_like(before)
        rows[:, 0], rows[:, TIME], rows[:, LENGTH] = picked.words.view(np.int64), times, lengths
        rows[:, CLASS] = classes
        self.rows[picked.places] = rows
        return before[before[:, CLASS] >= 0]
