"""What a manager counts: how transfers ended, and what is where now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass

from tenuto import metrics
from tenuto.errors import Cause
from tenuto.metrics import Recorder, series
from tenuto.pools import Pool
from tenuto.transfers.plan import Route, Transfer, TransferResult

_FROM_DISK = (Route.DISK_TO_HOST, Route.DISK_TO_DEVICE)


@dataclass(frozen=True, slots=True)
class Gauges:
    """Reads what is where now, from any thread. `block_bytes`: of a block on all ranks together."""

    pools: Sequence[Pool]
    in_flight: Mapping[Route, int]
    backlog: Sized
    peers: Sized
    n_empty: Callable[[Pool], int]
    """Slots of a pool that no block may be in."""
    block_bytes: int

    def read(self) -> dict[str, float]:
        """By series."""
        values: dict[str, float] = {
            series(metrics.BACKLOG_BLOCKS): len(self.backlog),
            series(metrics.PEER_BLOCKS): len(self.peers),
        }
        for route, n in self.in_flight.items():
            values[series(metrics.IN_FLIGHT, route.value)] = n
        for pool in self.pools:
            now = pool.statistics()
            n_empty = self.n_empty(pool)
            n_slots = now.total - n_empty
            values[series(metrics.TIER_BLOCKS, pool.name)] = now.registered
            values[series(metrics.TIER_LEASED_BLOCKS, pool.name)] = now.leased - n_empty
            values[series(metrics.TIER_CAPACITY_BLOCKS, pool.name)] = n_slots
            values[series(metrics.TIER_BYTES, pool.name)] = now.registered * self.block_bytes
            values[series(metrics.TIER_CAPACITY_BYTES, pool.name)] = n_slots * self.block_bytes
            values[series(metrics.EVICTED_BLOCKS, pool.name)] = now.evictions
        return values


def record_result(recorder: Recorder, transfer: Transfer, result: TransferResult) -> None:
    """Count how a transfer ended on all ranks."""
    route = transfer.route.value
    for failure in result.failures:
        recorder.add(metrics.FAILED_BLOCKS, 1, route, failure.cause.value)
        if failure.cause is Cause.CORRUPT and not transfer.after:  # else it was counted where it was read
            recorder.add(metrics.CORRUPT_BLOCKS, 1, _source(transfer))
    n_moved = len(transfer.keys) - len(result.failures)
    recorder.add(metrics.TRANSFERRED_BLOCKS, n_moved, route)
    recorder.add(metrics.TRANSFERRED_BYTES, result.n_bytes, route)
    if n_moved:
        recorder.observe(metrics.TRANSFER_SECONDS, result.seconds, route)


def _source(transfer: Transfer) -> str:
    if transfer.route in _FROM_DISK:
        return "peer" if transfer.volume else "disk"
    return "device" if transfer.route is Route.DEVICE_TO_HOST else "host"
