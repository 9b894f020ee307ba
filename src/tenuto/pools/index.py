"""Which slot holds which block."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tenuto.pools.policies import Slots
from tenuto.pools.policies.protocol import hash_of
from tenuto.tokens import BlockHash, BlockKey

_WORDS = 2  # of 8 bytes, in a hash
_FEW = 32  # hashes for which arrays don't pay
_ROOM = 4  # places per slot: one hint in ten is lost to another block


class HashIndex(dict[BlockHash, int]):
    """Block → slot, and a faster way to look up thousands at once.

    The dict is the truth. Beside it, `_rows` has the hash of every slot, and `_hints` a slot number at a place
    that the hash itself names: no search, just a guess. Where the row is not the hash wanted, the slot after the
    block before is the second guess, and the dict is asked last. In a pool of a million blocks each dict look-up
    waits for memory several times; the arrays' waits overlap (a prompt of 8192 blocks: 1 ms, not 3.5).
    """

    __slots__ = ("_hints", "_rows")

    def __init__(self) -> None:
        super().__init__()
        self._rows: npt.NDArray[np.uint64] = np.zeros((0, _WORDS), np.uint64)  # zero: no block
        self._hints: Slots = np.zeros(0, np.int32)

    def grow(self, n_slots: int) -> None:
        """There are `n_slots` slots from now on."""
        more = np.zeros((n_slots - len(self._rows), _WORDS), np.uint64)
        self._rows = np.concatenate([self._rows, more])
        if len(self._hints) < _ROOM * n_slots:
            self._hints = np.zeros(1 << (_ROOM * n_slots - 1).bit_length(), np.int32)
            used = np.flatnonzero(self._rows.any(axis=1)).astype(np.int32)
            self._hints[self._places(self._rows[used])] = used

    def remember(self, slots: Slots, keys: Sequence[BlockKey]) -> None:
        """Blocks that are in the dict now, for the fast way."""
        rows = _rows(list(map(hash_of, keys))) if keys else None
        if rows is not None:
            self._rows[slots] = rows
            self._hints[self._places(rows)] = slots

    def remove(self, slots: Slots, keys: Iterable[BlockKey]) -> None:
        """These slots hold these blocks no more."""
        deque(map(self.__delitem__, map(hash_of, keys)), maxlen=0)
        self._rows[slots] = 0

    def prefix(self, hashes: Iterable[BlockHash]) -> Slots:
        """The slots of the longest prefix of `hashes` that is here."""
        wanted = hashes if isinstance(hashes, list) else list(hashes)
        rows = _rows(wanted) if len(wanted) >= _FEW and len(self._rows) else None
        if rows is None:
            return self._searched(wanted, np.zeros(len(wanted), np.int32), list(range(len(wanted))))
        places = self._places(rows)
        slots = self._hints[places]
        lost = np.flatnonzero(~self._is_at(slots, rows))
        beside = (slots[lost - 1] + 1) % len(self._rows)  # a chain's blocks often lie in a row
        is_there = self._is_at(beside, rows[lost])
        slots[lost[is_there]] = beside[is_there]
        slots = self._searched(wanted, slots, lost[~is_there].tolist())
        lost = lost[: np.searchsorted(lost, len(slots))]
        self._hints[places[lost]] = slots[lost]  # taken back from blocks that came later, and may be gone
        return slots

    def _searched(self, wanted: list[BlockHash], slots: Slots, unsure: list[int]) -> Slots:
        """The slots up to the first block that is not here; those at `unsure` are looked up."""
        for at in unsure:
            slot = self.get(wanted[at])
            if slot is None:
                return slots[:at]
            slots[at] = slot
        return slots

    def is_consistent(self) -> bool:
        """Whether every row is what the dict says."""
        used = np.flatnonzero(self._rows.any(axis=1)).tolist()
        return all(self.get(BlockHash(self._rows[slot].tobytes())) == slot for slot in used)

    def _is_at(self, slots: Slots, rows: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Where the slot's hash is this one; never for one that looks like an empty row."""
        found = self._rows[slots]
        return (found[:, 0] == rows[:, 0]) & (found[:, 1] == rows[:, 1]) & (rows[:, 0] != 0)

    def _places(self, rows: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        return rows[:, 0] & np.uint64(len(self._hints) - 1)


def _rows(hashes: list[BlockHash]) -> npt.NDArray[np.uint64] | None:
    """Hashes as numbers; None when they are not all of the usual size."""
    data = b"".join(hashes)
    if len(data) != 8 * _WORDS * len(hashes):
        return None
    return np.frombuffer(data, np.uint64).reshape(-1, _WORDS)
