"""Which lane and which mover each route gets here."""

from __future__ import annotations

from tenuto.cli.doctor.disk import Rates
from tenuto.cli.doctor.finding import Finding, ok
from tenuto.transfers.plan import Route

LANES = {
    Route.DEVICE_TO_HOST: ("stage", "queued at the end of a step; copied by the CPU, or through a GPU's staging ring"),
    Route.HOST_TO_DEVICE: ("copy", "headers checked; copied by the CPU, or through a GPU's staging ring"),
    Route.HOST_TO_DISK: ("store", "sealed, written with {io}"),
    Route.DISK_TO_HOST: ("load", "read with {io}, verified"),
    Route.DISK_TO_DEVICE: ("direct", "when host memory is full: a bounce slot, {io}, verified"),
}
"""The lane, and how its blocks are moved."""


def choose_lanes(rates: Rates | None) -> list[Finding]:
    """One line per route. `rates`: None where the disk could not be measured."""
    io = "unknown I/O" if rates is None else rates.how
    return [
        ok(route.value.replace("_", " "), f"lane {lane}: {mover.format(io=io)}")
        for route, (lane, mover) in LANES.items()
    ]
