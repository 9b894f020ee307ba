"""What was seen of engines at one moment: plain data, of which a frame is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SILENT_S = 25.0
"""Who has told nothing for so long may be dead: by default there is a heartbeat every ten seconds."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A tier of a worker, or a volume of one. `n_stored`, `n_removed`: events that were heard so far.

    `n_chains`: prompts that its blocks begin with; `largest`: those with most blocks, as (hash in hex, blocks).
    """

    tier: str
    volume: str
    n_blocks: int
    size_bytes: int
    n_stored: int
    n_removed: int
    n_chains: int
    largest: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """A worker as its events tell. `heard_s`: when, on the looker's clock; `lag_s`: how old the last message was then.

    `lag_s` is None until something was heard live; `n_lost`: events that it had no room for.
    """

    node: str
    worker: str
    rank: int
    heard_s: float
    lag_s: float | None
    n_snapshots: int
    n_lost: int
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class EventsLook:
    """All workers of an event stream, at `at_s`. `n_answering`: addresses at which somebody has answered so far."""

    at_s: float
    workers: tuple[WorkerLook, ...]
    n_gaps: int
    n_snapshots: int
    n_answering: int


@dataclass(frozen=True, slots=True)
class EventsSeen:
    """The last two looks at a stream. `note`: what went wrong last, at `note_s`; `is_settled`: what there was is in.

    `ended`: the fault that has ended looking at it, else empty.
    """

    url: str
    now: EventsLook
    before: EventsLook | None = None
    note: str = ""
    note_s: float = 0.0
    is_settled: bool = False
    ended: str = ""


Values = Mapping[str, float]
"""By series, as `tenuto.metrics.series` writes them; of histograms the sum and the count."""


@dataclass(frozen=True, slots=True)
class MetricsLook:
    """The engines of an endpoint, by model ("" where it is not told) and engine, at `at_s`."""

    at_s: float
    took_s: float
    engines: Mapping[tuple[str, str], Values]


@dataclass(frozen=True, slots=True)
class MetricsSeen:
    """The last two looks at an endpoint that were answered. `fault`: why there was no answer now, else empty.

    `ended`: the fault that has ended looking at it, else empty.
    """

    url: str
    now: MetricsLook | None = None
    before: MetricsLook | None = None
    fault: str = ""
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything, at `at_s` on the looker's clock."""

    at_s: float
    events: tuple[EventsSeen, ...] = ()
    metrics: tuple[MetricsSeen, ...] = ()

    @property
    def has_heard(self) -> bool:
        """Whether any source is there."""
        return any(source.now.n_answering or source.now.workers for source in self.events) or any(
            source.now is not None for source in self.metrics
        )

    @property
    def has_heard_all(self) -> bool:
        """Whether every source has been there, or is not looked at any more."""
        return all(source.is_settled or source.ended for source in self.events) and all(
            source.now is not None or source.ended for source in self.metrics
        )

    @property
    def is_whole(self) -> bool:
        """Whether every source was looked at twice, so that all rates are known."""
        return self.has_heard_all and all(
            source.before is not None or source.ended for source in (*self.events, *self.metrics)
        )
