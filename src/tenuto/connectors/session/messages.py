"""What leader and workers tell each other. Picklable data."""

from __future__ import annotations

from dataclasses import dataclass, field

from tenuto.tiers.store import Capacity, StoreNews
from tenuto.tokens import BlockKey
from tenuto.transfers.plan import Transfer, TransferResult

Entries = list[tuple[int, BlockKey]]
"""(slot, key) pairs, oldest first."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget everything; blocks are of another namespace digest and epoch from now on."""

    namespace: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Leader → workers, every step.

    `before_forward` reads pages that this step may overwrite, `now` is started at once, `after_forward` when the
    step has computed.
    """

    before_forward: tuple[Transfer, ...] = ()
    now: tuple[Transfer, ...] = ()
    after_forward: tuple[Transfer, ...] = ()
    layered: tuple[Transfer, ...] = ()
    """Loads whose layers this step's forward waits for, one by one."""
    loads: tuple[tuple[str, frozenset[int]], ...] = ()
    """(request id, transfers that must end for its load to have ended)."""
    resets: tuple[Reset, ...] = ()
    is_idle: bool = False
    """Nothing is computed in this step: a worker may wait a moment for what is on its way."""
    timed: int = 0
    """The step's number when its report is to name it, so that it is known how long the step took; 0: it need not."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """Worker → leader, once: what it has and what it found on disk."""

    rank: int
    extent_bytes: int
    namespace: bytes
    disk: Capacity | None = None
    recovered: Entries = field(default_factory=Entries)
    peers: dict[str, Entries] = field(default_factory=dict[str, Entries])


@dataclass(slots=True)
class WorkerReport:
    """Workers → leader, with a step's output. Reports of several ranks are merged."""

    results: dict[int, list[TransferResult]] = field(default_factory=dict[int, list[TransferResult]])
    disks: dict[int, Capacity] = field(default_factory=dict[int, Capacity])
    """By rank, of those whose disk has changed."""
    peers: dict[int, dict[str, Entries]] = field(default_factory=dict[int, dict[str, Entries]])
    """By rank and instance: blocks of other engines that appeared."""
    volumes: dict[int, StoreNews] = field(default_factory=dict[int, StoreNews])
    """By rank: blocks that were moved between the disk tier's volumes, or lost there."""
    timed: int = 0
    """The number of the step that computed it, where its plan has one."""
    waited_s: float = 0.0
    """That this step's engine has waited for layers to be loaded."""

    def merge(self, other: WorkerReport) -> None:
        """Add another rank's report of the same step."""
        for transfer_id, results in other.results.items():
            self.results.setdefault(transfer_id, []).extend(results)
        self.disks |= other.disks
        self.peers |= other.peers
        self.volumes |= other.volumes
        self.timed = max(self.timed, other.timed)
        self.waited_s = max(self.waited_s, other.waited_s)
