"""One disk of a runtime: calls that block and, where the kernel has one, a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk.runtime.aio import Command
from tenuto.tiers.disk.runtime.contract import File, Region
from tenuto.tiers.disk.runtime.descriptors import Descriptor


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


class Queue(Protocol):
    """The kernel's queue, and the descriptors of the files that it moves bytes of. See `Aio`."""

    def take(self, file: File) -> Descriptor:
        """See `Descriptors`."""
        ...

    def give_back(self, taken: Descriptor) -> None:
        """See `Descriptors`."""
        ...

    def submit(self, commands: Sequence[Command]) -> int:
        """See `Aio`."""
        ...

    def wait(self, n_least: int, timeout_s: float | None) -> list[tuple[int, int]]:
        """See `Aio`."""
        ...

    def wake(self) -> None:
        """See `Aio`."""
        ...

    def close(self) -> None:
        """See `Aio`."""
        ...


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


@runtime_checkable
class QueuedDevice(Device, Protocol):
    """A device that the kernel may have a queue for."""

    def open_queue(self, n_events: int) -> Queue | None:
        """The kernel's queue for its files, where there is one that holds nobody; close it before the files."""
        ...
