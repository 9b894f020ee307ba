"""How often hashes were seen lately, in little memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tenuto.tokens import BlockHash

_ROWS = 4
_MOST = 15


class CountSketch:
    """Count-min sketch (Cormode, Muthukrishnan, J. Algorithms 55, 2005) of counts up to 15 that fade.

    After `n_aging` additions all counts are halved, as in TinyLFU (Einziger, Friedman, Manes, ACM TOS 13(4), 2017).
    `n_counters` in each of four rows is rounded up to a power of two; one byte each.
    """

    def __init__(self, n_counters: int, n_aging: int) -> None:
        self._mask = np.uint64((1 << max(n_counters - 1, 1).bit_length()) - 1)
        self._rows: npt.NDArray[np.uint8] = np.zeros((_ROWS, int(self._mask) + 1), np.uint8)
        self._n_aging = n_aging
        self._n_added = 0

    def add(self, hashes: Sequence[BlockHash]) -> None:
        """Each was seen once more."""
        if not hashes:
            return
        for row, places in zip(self._rows, self._places(hashes), strict=True):
            row[places] = np.minimum(row[places] + 1, _MOST)
        self._n_added += len(hashes)
        if self._n_added >= self._n_aging:
            self._rows >>= 1
            self._n_added //= 2

    def count(self, hashes: Sequence[BlockHash]) -> npt.NDArray[np.uint8]:
        """How often each was seen, or more."""
        if not hashes:
            return np.zeros(0, np.uint8)
        places = self._places(hashes)
        return np.min([row[at] for row, at in zip(self._rows, places, strict=True)], axis=0)

    def _places(self, hashes: Sequence[BlockHash]) -> list[npt.NDArray[np.uint64]]:
        words = hash_words(hashes)
        return [(words >> np.uint64(13 * row)) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20) & self._mask
                for row in range(_ROWS)]  # fmt: skip


def hash_words(hashes: Sequence[BlockHash]) -> npt.NDArray[np.uint64]:
    """The first eight bytes of each hash as a number; shorter ones are filled with zeros."""
    data = b"".join(hashes)
    if len(data) == 16 * len(hashes):
        return np.frombuffer(data, np.uint64)[::2]
    return np.array([int.from_bytes(block[:8], "little") for block in hashes], np.uint64)
