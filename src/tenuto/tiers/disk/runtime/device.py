"""What the threads of a runtime call: one disk, whose calls block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk.runtime.contract import File, Region


@dataclass(frozen=True, slots=True)
class Span:
    """`n_bytes` of a region, from `offset`."""

    region: Region
    offset: int
    n_bytes: int

    def view(self) -> memoryview:
        """Its bytes. Raises `StoreError` for memory of a device."""
        if self.region.view is None:
            raise StoreError(Cause.IO_ERROR, "this memory is a device's")
        return self.region.view[self.offset : self.offset + self.n_bytes]


class Device(Protocol):
    """Files below a folder. Thread-safe; errors are `StoreError`."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of each plain file in a folder, by its name there; none where there is no folder."""
        ...

    def reserve(self, name: str, n_bytes: int) -> None:
        """Make a file, with its folders, and give it this size, with or without holes."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...

    def n_extents(self, name: str) -> int:
        """Pieces of the disk that a file lies in; 0 where that is not told."""
        ...

    def read(self, file: File, offset: int, spans: Sequence[Span]) -> int:
        """Fill spans, one behind the other, as far as the file goes; bytes read."""
        ...

    def write(self, file: File, offset: int, spans: Sequence[Span]) -> None:
        """Write spans one behind the other."""
        ...

    def forget(self, file: File) -> None:
        """Nobody will ask for it again; descriptors may close."""
        ...

    def attach(self, region: Region) -> None:
        """A region was registered."""
        ...

    def detach(self, region: Region) -> None:
        """A region was given up."""
        ...

    def close(self) -> None:
        """Close all files."""
        ...
