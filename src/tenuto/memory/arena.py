"""Host memory for extents: one contiguous, page-aligned mapping cut into slots."""

from __future__ import annotations

import contextlib
import mmap
import os

from tenuto.errors import ConfigError


class HostArena:
    """`n_slots` extents of `extent_bytes` each, anonymous memory, given out as memoryviews.

    Huge pages where the kernel has them (direct I/O gains a tenth or more), touched when they are first used; private,
    since shared anonymous memory gets none, and absent in forked children. Close it only after every view is gone.
    """

    def __init__(self, n_slots: int, extent_bytes: int) -> None:
        if extent_bytes % mmap.PAGESIZE:
            raise ValueError(f"extent of {extent_bytes} bytes is not a multiple of a page")
        self.n_slots = n_slots
        self.extent_bytes = extent_bytes
        has = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        if n_slots * extent_bytes > has:
            raise ConfigError(
                f"tiers.host.capacity: {n_slots * extent_bytes / 2**30:.1f} GiB is more than the {has / 2**30:.1f} GiB "
                "of memory there is; give less"
            )
        try:
            self._map = mmap.mmap(-1, max(n_slots, 1) * extent_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            gib = n_slots * extent_bytes / 2**30
            raise ConfigError(
                f"tiers.host.capacity: {gib:.1f} GiB of memory can't be had ({error}); give less"
            ) from None
        self._map.madvise(mmap.MADV_DONTFORK)  # a fork must not part us from pages that are being read into
        with contextlib.suppress(OSError):  # a kernel without them
            self._map.madvise(mmap.MADV_HUGEPAGE)
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
