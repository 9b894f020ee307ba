"""Host memory for extents: one contiguous, page-aligned mapping cut into slots."""

from __future__ import annotations

import mmap

from tenuto.errors import ConfigError


class HostArena:
    """`n_slots` extents of `extent_bytes` each, anonymous memory, given out as memoryviews.

    Pages are touched when they are first used. Close it only after every view is gone.
    """

    def __init__(self, n_slots: int, extent_bytes: int) -> None:
        if extent_bytes % mmap.PAGESIZE:
            raise ValueError(f"extent of {extent_bytes} bytes is not a multiple of a page")
        self.n_slots = n_slots
        self.extent_bytes = extent_bytes
        try:
            self._map = mmap.mmap(-1, max(n_slots, 1) * extent_bytes)
        except (OSError, ValueError, OverflowError) as error:
            gib = n_slots * extent_bytes / 2**30
            raise ConfigError(
                f"tiers.host.capacity: {gib:.1f} GiB of memory can't be had ({error}); give less"
            ) from None
        self.view = memoryview(self._map)
        """The whole arena as bytes."""

    def slot(self, number: int) -> memoryview:
        """The bytes of one slot; writable, page-aligned."""
        if not 0 <= number < self.n_slots:
            raise IndexError(f"slot {number} of {self.n_slots}")
        start = number * self.extent_bytes
        return self.view[start : start + self.extent_bytes]

    def __repr__(self) -> str:
        return f"<HostArena {self.n_slots} x {self.extent_bytes} bytes>"
