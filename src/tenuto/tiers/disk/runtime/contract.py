"""What every storage runtime does: many pieces of files to or from registered memory, and the fate of each."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from tenuto.errors import Cause

if TYPE_CHECKING:
    from tenuto.tiers.disk.runtime.books import Submission

Work = Callable[[], None]
"""Runs on the thread that moves the item: before a write, after a read. A `StoreError` from it fails the item."""


@dataclass(frozen=True, slots=True)
class Caps:
    """What a runtime takes. Addresses are multiples of `memory_alignment`, offsets and lengths of `io_alignment`.

    At most `max_in_flight` reads, and as many writes, are under way at once; one item has at most `max_io_bytes`.
    `is_queued`: pieces wait in the kernel, and not in threads. With device memory an item may move to or from a GPU;
    with device execution it may be queued on its stream.
    """

    name: str
    memory_alignment: int = 4096
    io_alignment: int = 4096
    max_io_bytes: int = 1 << 30
    max_in_flight: int = 1024
    is_queued: bool = False
    has_device_memory: bool = False
    has_device_execution: bool = False

    @property
    def mover(self) -> str:
        """What moves the bytes, for people."""
        if self.name not in ("file", "striped"):
            return self.name
        return f"{self.name}, by {'kernel AIO' if self.is_queued else 'threads'}"


@dataclass(frozen=True, slots=True)
class Memory:
    """`n_bytes` at `address`, in this process or on GPU `device`. Kept alive by `buffer`, or by the caller."""

    address: int
    n_bytes: int
    device: int | None = None
    buffer: memoryview | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, buffer: memoryview) -> Memory:
        """The memory of a writable buffer of bytes."""
        return cls(address_of(buffer), len(buffer), buffer=buffer)

    def view(self) -> memoryview:
        """Host memory as bytes."""
        if self.buffer is not None:
            return self.buffer
        return memoryview((ctypes.c_ubyte * self.n_bytes).from_address(self.address)).cast("B")


def address_of(buffer: memoryview) -> int:
    """Where a writable buffer lies in this process's memory."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that a runtime has registered; `number` is the runtime's own."""

    number: int
    memory: Memory
    view: memoryview | None = field(default=None, repr=False, compare=False)
    """Its bytes; None on a device."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that was opened: by its name below the runtime's root, as often as it was opened."""

    number: int
    name: str
    is_writable: bool


class Op(Enum):
    """Which way an item goes."""

    READ = "read"  #: file to memory
    WRITE = "write"  #: memory to file


@dataclass(frozen=True, slots=True)
class IoRequest:
    """`length` bytes between `offset` of a file and `memory_offset` of a region."""

    op: Op
    file: File
    offset: int
    region: Region
    memory_offset: int
    length: int
    work: Work | None = field(default=None, repr=False, compare=False)


class Reason(Enum):
    """Why an item was not accepted. Only `FULL` passes by itself."""

    FULL = "as many are in flight as may be"
    ALIGNMENT = "offset, length or address is not a multiple of the alignment"
    SIZE = "no bytes, or more than one item may have"
    OUTSIDE = "outside its region, or before the file"
    UNKNOWN = "the file is not open, or the memory not registered"
    READ_ONLY = "a write to a file that was opened for reading"
    STREAM = "this runtime does not queue on a device's stream"
    CLOSED = "the runtime is closed"


@dataclass(frozen=True, slots=True)
class Accepted:
    """Under way: its memory is not to be touched."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Never begun."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Done:
    """All of it has moved."""

    n_bytes: int


@dataclass(frozen=True, slots=True)
class Short:
    """A read that reached behind the end of its file: `n_bytes` arrived."""

    n_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """What moved of it is undefined."""

    cause: Cause
    message: str


Initial = Accepted | Rejected
"""What `submit` says of an item."""
Final = Done | Short | Failed
"""How an accepted item ends."""
State = Accepted | Rejected | Done | Short | Failed
"""Where an item stands: `Accepted` while it is under way."""


class StorageRuntime(Protocol):
    """Files below a root, and the moving of their bytes. Thread-safe. Names are relative, with `/` between folders."""

    @property
    def caps(self) -> Caps:
        """What it takes."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of each plain file in a folder, by its name there; a folder may be missing. Raises `StoreError`."""
        ...

    def reserve(self, name: str, n_bytes: int) -> None:
        """Make a file, with its folders, and give it this size, with or without holes. Raises `StoreError`."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file, if it is there. Raises `StoreError`."""
        ...

    def n_extents(self, name: str) -> int:
        """Pieces of a disk that a file lies in, at most; 0 where that is not told. Raises `StoreError`."""
        ...

    def open_batch(self, names: Sequence[str], *, is_writable: bool = True) -> list[File]:
        """Files to move bytes of. Touches no disk: one that is not there fails its items.

        Raises `StoreError` when the runtime is closed.
        """
        ...

    def close_batch(self, files: Sequence[File]) -> None:
        """Give files up; what is under way ends as it would have."""
        ...

    def register_memory(self, memory: Memory) -> Region:
        """Memory that items may name. Registered again it is the same region, and has to be unregistered as often.

        Raises `StoreError` when it can't be.
        """
        ...

    def unregister_memory(self, region: Region) -> None:
        """Give a region up once; not while one of its items is under way."""
        ...

    def submit(self, requests: Sequence[IoRequest], stream: object = None) -> Submission:
        """Begin what is accepted, in any order, without waiting; see `Submission.initial`.

        `stream`: begin after what is queued there now; needs device execution.
        """
        ...

    def poll(self, submission: Submission) -> tuple[State, ...]:
        """The state of every item now, as they were given."""
        ...

    def wait(self, submission: Submission, timeout_s: float | None = None) -> tuple[State, ...]:
        """The state of every item when none is under way. Raises `StoreError` (TIMEOUT); they go on all the same."""
        ...

    def close(self) -> None:
        """End what is under way, close files, give memory up. Whatever is submitted later is rejected."""
        ...
