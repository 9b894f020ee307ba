"""Host memory for extents: one contiguous, page-aligned mapping cut into slots."""

from __future__ import annotations

import mmap
import os

from tenuto.memory.mapping import Mapping, anonymous
from tenuto.memory.registration import Registrations


class HostArena:
    """`n_slots` extents of `extent_bytes` each, given out as memoryviews.

    Private anonymous memory unless a mapping is given, with what was registered of it, which `close` undoes. Anonymous
    memory is in huge pages where the kernel has them (direct I/O gains a tenth or more) and touched when it is first
    used. It goes when the last view has gone. Raises `ConfigError` when there is not that much memory.
    """

    def __init__(
        self,
        n_slots: int,
        extent_bytes: int,
        mapping: Mapping | None = None,
        registrations: Registrations | None = None,
    ) -> None:
        if extent_bytes % mmap.PAGESIZE:
            raise ValueError(f"extent of {extent_bytes} bytes is not a multiple of a page")
        self.n_slots = n_slots
        self.extent_bytes = extent_bytes
        size_bytes = max(n_slots, 1) * extent_bytes
        self._mapping = anonymous(size_bytes) if mapping is None else mapping
        self._registrations = registrations
        self.fd = self._mapping.fd
        """What another process maps the arena through, slot 0 first; None where it is private, or closed."""
        self.view = memoryview(self._mapping.buffer)[:size_bytes]
        """The whole arena as bytes."""

    def slot(self, number: int) -> memoryview:
        """The bytes of one slot; writable, page-aligned."""
        start = self._start(number)
        return self.view[start : start + self.extent_bytes]

    def address(self, number: int) -> int:
        """Where one slot lies in this process's memory."""
        return self._mapping.address + self._start(number)

    def close(self) -> None:
        """Unpin what is pinned, and close the descriptor; slots stay readable. No copy may be running any more."""
        if self._registrations is not None:
            self._registrations.close()
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def _start(self, number: int) -> int:
        if not 0 <= number < self.n_slots:
            raise IndexError(f"slot {number} of {self.n_slots}")
        return number * self.extent_bytes

    def __repr__(self) -> str:
        return f"<HostArena {self.n_slots} x {self.extent_bytes} bytes>"
