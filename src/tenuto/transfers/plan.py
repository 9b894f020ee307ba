"""Transfers as data: made by the manager, sent to workers, answered by results. Pure; picklable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from tenuto.errors import Cause
from tenuto.memory.pages import PageRun
from tenuto.tokens import BlockKey, TokenBlock


class Route(Enum):
    """From where to where."""

    DEVICE_TO_HOST = "device_to_host"
    HOST_TO_DISK = "host_to_disk"
    DISK_TO_HOST = "disk_to_host"
    HOST_TO_DEVICE = "host_to_device"
    DISK_TO_DEVICE = "disk_to_device"  #: through a bounce buffer, not kept in host memory

    @property
    def is_load(self) -> bool:
        """Towards the device; somebody waits for it."""
        return self in (Route.DISK_TO_HOST, Route.HOST_TO_DEVICE, Route.DISK_TO_DEVICE)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Move `keys`, in order. Host and disk slots are numbers; device places are page runs.

    `sources` are slots of the tier a route starts from, `targets` those it ends in; the device's are in `pages`.
    `after`: transfers that must have ended; a block that failed in one of them fails here too, unmoved.
    """

    id: int
    route: Route
    keys: tuple[BlockKey, ...]
    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    pages: tuple[PageRun, ...] = ()
    volume: str = ""
    after: tuple[int, ...] = ()
    blocks: tuple[TokenBlock, ...] = field(default=(), repr=False)
    """With tokens, for the headers of a device → host transfer."""


@dataclass(frozen=True, slots=True)
class BlockFailure:
    """Block `index` of a transfer failed."""

    index: int
    cause: Cause
    message: str = ""


@dataclass(frozen=True, slots=True)
class TransferResult:
    """How a transfer ended on one rank: every block not in `failures` was moved whole."""

    transfer_id: int
    failures: tuple[BlockFailure, ...] = ()
    n_bytes: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, transfer: Transfer, failures: Mapping[int, BlockFailure], extent_bytes: int, seconds: float) -> Self:
        """Of a transfer of extents, by the failures of its blocks."""
        n_bytes = (len(transfer.keys) - len(failures)) * extent_bytes
        return cls(transfer.id, tuple(failures[index] for index in sorted(failures)), n_bytes, seconds)

    @classmethod
    def cancelled(cls, transfer: Transfer, message: str = "") -> Self:
        """Of a transfer that was never begun, or is not to be kept."""
        return cls.of(transfer, all_fail(range(len(transfer.keys)), Cause.CANCELLED, message), 0, 0.0)

    @property
    def failed(self) -> frozenset[int]:
        """Indices of the failed blocks."""
        return frozenset(failure.index for failure in self.failures)


def all_fail(indices: Iterable[int], cause: Cause, message: str = "") -> dict[int, BlockFailure]:
    """Blocks, by index, that fail for one reason."""
    return {index: BlockFailure(index, cause, message) for index in indices}


def merge_results(results: list[TransferResult]) -> TransferResult:
    """What all ranks agree on: a block was moved only if every rank moved it, and lost if any rank lost it."""
    failures: dict[int, BlockFailure] = {}
    for failure in (failure for result in results for failure in result.failures):
        if failure.cause.is_loss or failure.index not in failures:
            failures[failure.index] = failure
    return TransferResult(
        results[0].transfer_id,
        tuple(failures[index] for index in sorted(failures)),
        sum(result.n_bytes for result in results),
        max(result.seconds for result in results),
    )
