"""A virtual clock, and lanes on which transfers take their turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from tenuto.transfers.plan import Route, Transfer, TransferResult


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bytes per second of each lane; 0: instant. `block_bytes`: of a block."""

    device_to_host: float = 0.0
    host_to_disk: float = 0.0
    disk_to_host: float = 0.0
    host_to_device: float = 0.0
    block_bytes: int = 1

    def seconds(self, route: Route, n_blocks: int) -> float:
        """What moving so many blocks takes by itself; disk → device goes at the rate of the disk."""
        rates = {
            Route.DEVICE_TO_HOST: self.device_to_host,
            Route.HOST_TO_DISK: self.host_to_disk,
            Route.DISK_TO_HOST: self.disk_to_host,
            Route.HOST_TO_DEVICE: self.host_to_device,
            Route.DISK_TO_DEVICE: self.disk_to_host,
        }
        return n_blocks * self.block_bytes / rates[route] if rates[route] else 0.0


class Lanes:
    """Each route moves one transfer at a time, in the order they came; one that follows another begins behind it."""

    def __init__(self, bandwidths: Bandwidths) -> None:
        self._bandwidths = bandwidths
        self._free_at = dict.fromkeys(Route, 0.0)
        self._ends: dict[int, float] = {}  # of transfers on their way
        self._due: list[tuple[float, int, int]] = []

    def submit(self, transfers: Iterable[Transfer], now: float) -> None:
        """Begin these as soon as their lane and what they follow allow."""
        for transfer in transfers:
            begin = max(now, self._free_at[transfer.route], *(self._ends.get(other, now) for other in transfer.after))
            n_blocks = len(transfer.keys)
            end = self._free_at[transfer.route] = begin + self._bandwidths.seconds(transfer.route, n_blocks)
            self._ends[transfer.id] = end
            heappush(self._due, (end, transfer.id, n_blocks))

    def next_end(self) -> float | None:
        """When the next transfer ends."""
        return self._due[0][0] if self._due else None

    def pop(self) -> TransferResult:
        """The next transfer has ended."""
        _, number, n_blocks = heappop(self._due)
        del self._ends[number]
        return TransferResult(number, (), n_blocks * self._bandwidths.block_bytes)
