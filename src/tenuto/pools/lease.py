"""Leases: slots that can't be taken away.

A lease covers many blocks, is used with ``with``, and is consumed by the call that takes it. One that is
collected without having been released gives its slots back and warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from tenuto.errors import LeaseError

if TYPE_CHECKING:
    from tenuto.pools.pool import Pool


class _SlotLease:
    """What both kinds of lease share: slot numbers, owned until consumed."""

    __slots__ = ("__weakref__", "_array", "_pool", "_slots", "known_as")

    def __init__(self, pool: Pool, array: npt.NDArray[np.int32]) -> None:
        self._pool = pool
        self._array: npt.NDArray[np.int32] | None = array
        self._slots: list[int] | None = None
        self.known_as = ""
        """What its user holds, to be named in a warning; empty: the lease itself."""

    @property
    def slots(self) -> list[int]:
        """The slot numbers, in block order."""
        slots = self._slots
        if slots is None:
            slots = self._slots = self.borrow(self._pool).tolist()
        return slots

    @property
    def is_consumed(self) -> bool:
        """Whether a call has taken this lease."""
        return self._array is None

    def __len__(self) -> int:
        return 0 if self._array is None else len(self._array)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_consumed:
            self._give_back()

    def __del__(self) -> None:
        # Runs in any thread, perhaps inside the pool's own lock: only append to a queue.
        if getattr(self, "_array", None) is not None and len(self):
            what = repr(self)
            self._pool.abandon(self.consume(self._pool))
            warnings.warn(f"{what} was dropped without being released", ResourceWarning, 2)

    def _give_back(self) -> None:
        raise NotImplementedError

    def borrow(self, pool: Pool) -> npt.NDArray[np.int32]:
        """The slots, for `pool` to look at. Raises `LeaseError` when consumed, or of another pool."""
        if self._array is None:
            raise LeaseError(f"this {type(self).__name__} was already consumed")
        if pool is not self._pool:
            raise LeaseError(f"this lease is of pool {self._pool.name!r}, not {pool.name!r}")
        return self._array

    def consume(self, pool: Pool) -> npt.NDArray[np.int32]:
        """The slots, for `pool` to take back. Raises `LeaseError` like `borrow`."""
        array = self.borrow(pool)
        self._array = None
        return array

    def split(self, indices: Collection[int]) -> Self:
        """Take the slots at these indices out of the lease, into one of their own."""
        array = self.borrow(self._pool)
        is_taken = np.zeros(len(array), bool)
        is_taken[list(indices)] = True
        self._array, self._slots = array[~is_taken], None
        return type(self)(self._pool, array[is_taken])

    def __repr__(self) -> str:
        what = "consumed" if self.is_consumed else f"{len(self)} slots"
        return f"<{self.known_as or type(self).__name__} {self._pool.name}: {what}>"


class Lease(_SlotLease):
    """Read-only, shared lease on registered slots."""

    __slots__ = ()

    def release(self) -> None:
        """Give the slots back: they stay matchable and can be evicted again."""
        self._pool.release(self)

    def _give_back(self) -> None:
        self.release()


class WritableLease(_SlotLease):
    """Exclusive lease on slots that are being filled; nobody else can see them."""

    __slots__ = ()

    def discard(self) -> None:
        """Give the slots up: their content is lost."""
        self._pool.discard(self)

    def _give_back(self) -> None:
        self.discard()
