"""A disk in memory, for tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk.runtime.contract import File, Region
from tenuto.tiers.disk.runtime.device import Span


class MemoryFiles:
    """See `Device`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, bytearray] = {}
        self.regions: set[int] = set()
        """Numbers of what is registered."""

    def sizes(self, folder: str) -> dict[str, int]:
        """See `Device`."""
        start = f"{folder}/" if folder else ""
        with self._lock:
            found = {
                name.removeprefix(start): len(data) for name, data in self._files.items() if name.startswith(start)
            }
        return {name: n_bytes for name, n_bytes in found.items() if "/" not in name}

    def reserve(self, name: str, n_bytes: int) -> None:
        """See `Device`."""
        with self._lock:
            data = self._files.setdefault(name, bytearray())
            del data[n_bytes:]
            data.extend(bytes(n_bytes - len(data)))

    def delete(self, name: str) -> None:
        """See `Device`."""
        with self._lock:
            self._files.pop(name, None)

    def n_extents(self, name: str) -> int:
        """See `Device`."""
        with self._lock:
            if name not in self._files:
                raise StoreError(Cause.MISSING, f"{name} is gone")
        return 0

    def read(self, file: File, offset: int, spans: Sequence[Span]) -> int:
        """See `Device`."""
        done = 0
        with self._lock:
            data = self._data(file)
            for span in spans:
                found = data[offset + done : offset + done + span.n_bytes]
                span.view()[: len(found)] = found
                done += len(found)
        return done

    def write(self, file: File, offset: int, spans: Sequence[Span]) -> None:
        """See `Device`."""
        with self._lock:
            data = self._data(file)
            for span in spans:
                data.extend(bytes(max(0, offset - len(data))))
                data[offset : offset + span.n_bytes] = span.view()
                offset += span.n_bytes

    def forget(self, file: File) -> None:
        """See `Device`."""

    def attach(self, region: Region) -> None:
        """See `Device`."""
        self.regions.add(region.number)

    def detach(self, region: Region) -> None:
        """See `Device`."""
        self.regions.discard(region.number)

    def close(self) -> None:
        """See `Device`."""

    def _data(self, file: File) -> bytearray:
        """The lock is held."""
        data = self._files.get(file.name)
        if data is None:
            raise StoreError(Cause.MISSING, f"{file.name} is gone")
        return data
