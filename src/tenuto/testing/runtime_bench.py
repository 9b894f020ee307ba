"""A runtime with a file in it, and short ways to move its bytes."""

from __future__ import annotations

from random import Random

from tenuto.memory.arena import HostArena
from tenuto.tiers.disk.runtime import Done, File, IoRequest, Memory, Op, Reason, Rejected, State, StorageRuntime

WAIT_S = 60.0
"""So long a test waits for what will come."""


class Bench:
    """A runtime, a file with known bytes, and a region as large as the file: chunk i is at i in both."""

    def __init__(self, runtime: StorageRuntime, n_chunks: int = 16) -> None:
        caps = runtime.caps
        self.runtime = runtime
        self.chunk = max(caps.io_alignment, caps.memory_alignment)
        self.n_chunks = n_chunks
        size_bytes = n_chunks * self.chunk
        arena = HostArena(2, size_bytes + self.chunk)
        skip = -arena.address(0) % self.chunk
        self.buffer = arena.view[skip : skip + size_bytes]
        self.region = runtime.register_memory(Memory.of(self.buffer))
        self.data = Random(0).randbytes(size_bytes)
        runtime.reserve("folder/file", size_bytes)
        self.file: File = runtime.open_batch(["folder/file"])[0]
        self.fill()
        assert self.moved([self.request(Op.WRITE, 0, n_chunks)]) == [Done(size_bytes)]
        self.clear()

    def fill(self) -> None:
        """Memory is as the file."""
        self.buffer[:] = self.data

    def clear(self) -> None:
        """Memory is nothing."""
        self.buffer[:] = bytes(len(self.buffer))

    def request(self, op: Op, first: int, n: int = 1, **other: object) -> IoRequest:
        """Chunks `first` to `first + n`."""
        known: dict[str, object] = {
            "op": op, "file": self.file, "offset": first * self.chunk, "region": self.region,
            "memory_offset": first * self.chunk, "length": n * self.chunk,
        }  # fmt: skip
        return IoRequest(**{**known, **other})  # pyright: ignore[reportArgumentType]

    def moved(self, requests: list[IoRequest]) -> list[State]:
        """Submit, wait."""
        return list(self.runtime.wait(self.runtime.submit(requests), WAIT_S))

    def refused(self, request: IoRequest) -> Reason:
        """Why it is."""
        (state,) = self.runtime.submit([request]).initial
        assert isinstance(state, Rejected)
        return state.reason

    def is_there(self, chunk: int) -> bool:
        """Whether a chunk of memory is as the file's."""
        where = slice(chunk * self.chunk, (chunk + 1) * self.chunk)
        return bytes(self.buffer[where]) == self.data[where]
