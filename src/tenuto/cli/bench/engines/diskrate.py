"""The ceiling of a load from disk: a file just written, read by several threads around the page cache."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median

_CHUNK_BYTES = 4 << 20
_N_WRITERS = 8
READERS = (8, 16)
"""Threads that read the file, by turns: the better number is the ceiling."""


def best_median(rates: Mapping[int, Sequence[float]]) -> float | None:
    """Of rates by how many threads read: the ceiling. None where nothing was measured."""
    return max((median(some) for some in rates.values()), default=None)


class DiskMeter:
    """A file of `n_bytes` (rounded up to 4 MiB), with data in all of it. `close` removes it."""

    def __init__(self, path: Path, n_bytes: int) -> None:
        self._path = path
        self._n_chunks = -(-n_bytes // _CHUNK_BYTES)
        self.is_direct = True
        descriptor = self._open(os.O_RDWR | os.O_CREAT)
        try:
            self._run(descriptor, os.pwritev, _N_WRITERS)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def measure(self, n_threads: int) -> float:
        """Bytes per second of reading it once by so many threads."""
        descriptor = self._open(os.O_RDONLY)
        try:
            if not self.is_direct:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            self._run(descriptor, os.preadv, n_threads)
            return self._n_chunks * _CHUNK_BYTES / (time.perf_counter() - began)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)

    def _open(self, flags: int) -> int:
        if self.is_direct:
            with suppress(OSError):
                return os.open(self._path, flags | os.O_DIRECT, 0o600)
            self.is_direct = False  # a file system without it
        return os.open(self._path, flags, 0o600)

    def _run(self, descriptor: int, move: Callable[[int, list[mmap.mmap], int], int], n_threads: int) -> None:
        """All chunks, each thread every n-th."""

        def every_nth(first: int) -> None:
            with mmap.mmap(-1, _CHUNK_BYTES) as buffer:
                buffer[:] = os.urandom(4096) * (_CHUNK_BYTES // 4096)
                for index in range(first, self._n_chunks, n_threads):
                    if move(descriptor, [buffer], index * _CHUNK_BYTES) != _CHUNK_BYTES:
                        raise OSError(f"{self._path}: a short read or write")

        with ThreadPoolExecutor(n_threads) as threads:
            list(threads.map(every_nth, range(n_threads)))
