"""All metrics: one table, and the recorder that counts them.

Recording is done on the engine's scheduler thread and costs about a microsecond; reading is safe from any thread.
A **series** is one metric with its label values, as text: "tenuto_failed_blocks_total disk_to_host corrupt".
"""

from __future__ import annotations

import functools
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    """Prometheus' kinds. A counter only grows; a gauge is read when somebody asks; a histogram counts by bucket."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """`name` is Prometheus' and ends in the unit; `key` is the name in `statistics()`, with a place for each label."""

    name: str
    kind: Kind
    help: str
    key: str
    labels: tuple[str, ...] = ()


SECONDS_BUCKETS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper bounds of every histogram's buckets, in seconds; the last bucket has none."""

_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_TIER, _ROUTE = ("tier",), ("route",)

ASKED_TOKENS = Metric(
    "tenuto_asked_tokens_total", _COUNTER,
    "Tokens of admitted requests that were looked up: the denominator of the hit rate", "tokens.asked",
)  # fmt: skip
ENGINE_TOKENS = Metric(
    "tenuto_engine_tokens_total", _COUNTER, "Of those, tokens that the engine's own prefix cache had", "tokens.engine"
)
FOUND_TOKENS = Metric(
    "tenuto_found_tokens_total", _COUNTER, "Of those, tokens that were found in a tier and whose load began",
    "tokens.found.{}", _TIER,
)  # fmt: skip
GATED_TOKENS = Metric(
    "tenuto_gated_tokens_total", _COUNTER, "Tokens that were found in a tier and computed, since that was sooner",
    "tokens.gated.{}", _TIER,
)  # fmt: skip
LOADED_TOKENS = Metric(
    "tenuto_loaded_tokens_total", _COUNTER, "Tokens whose load has ended well: they are not computed",
    "tokens.loaded.{}", _TIER,
)  # fmt: skip
FAILED_TOKENS = Metric(
    "tenuto_failed_tokens_total", _COUNTER,
    "Tokens that are computed after all, since their load or that of a block before them failed",
    "tokens.failed.{}", _TIER,
)  # fmt: skip
LOADS = Metric("tenuto_loads_total", _COUNTER, "Loads that began, one for each admitted hit", "loads")
LOAD_SECONDS = Metric(
    "tenuto_load_seconds", _HISTOGRAM, "From a hit's admission to its load's end, by the slowest tier it is in",
    "load_seconds.{}", _TIER,
)  # fmt: skip
LOOKUP_SECONDS = Metric(
    "tenuto_lookup_seconds", _HISTOGRAM, "One search for a prompt's blocks in all tiers", "lookup_seconds"
)
PREFILL_RATE = Metric(
    "tenuto_prefill_tokens_per_second", _GAUGE, "What the engine is seen to compute, in a full step of a new prompt",
    "rate.prefill",
)  # fmt: skip
LOAD_RATE = Metric(
    "tenuto_load_bytes_per_second", _GAUGE, "What a long load is seen to bring, on all ranks together",
    "rate.load.{}", _TIER,
)  # fmt: skip

TRANSFERRED_BLOCKS = Metric("tenuto_transferred_blocks_total", _COUNTER, "Blocks moved whole", "moved.{}", _ROUTE)
TRANSFERRED_BYTES = Metric(
    "tenuto_transferred_bytes_total", _COUNTER, "Bytes moved, on all ranks together", "bytes.{}", _ROUTE
)
TRANSFER_SECONDS = Metric(
    "tenuto_transfer_seconds", _HISTOGRAM, "One transfer of one or more blocks, on its slowest rank",
    "transfer_seconds.{}", _ROUTE,
)  # fmt: skip
FAILED_BLOCKS = Metric(
    "tenuto_failed_blocks_total", _COUNTER,
    "Blocks that were not moved; one that fails on its way to host memory fails on its way to the device too",
    "failed.{}.{}", ("route", "cause"),
)  # fmt: skip
CORRUPT_BLOCKS = Metric(
    "tenuto_corrupt_blocks_total", _COUNTER, "Our stored blocks whose header or checksum did not match: never served",
    "corrupt.{}", _TIER,
)  # fmt: skip
SKIPPED_BLOCKS = Metric(
    "tenuto_skipped_blocks_total", _COUNTER, "Blocks that were not kept, or not written to disk",
    "skipped.{}", ("reason",),
)  # fmt: skip
IN_FLIGHT = Metric("tenuto_in_flight_transfers", _GAUGE, "Transfers on their way", "flights.{}", _ROUTE)
BACKLOG_BLOCKS = Metric("tenuto_backlog_blocks", _GAUGE, "Blocks that wait to be written to disk", "backlog")
PEER_BLOCKS = Metric("tenuto_peer_blocks", _GAUGE, "Blocks of other engines of the node that can be read", "peers")
REQUESTS = Metric("tenuto_requests", _GAUGE, "Requests that are known and have not ended", "requests")

TIER_BLOCKS = Metric("tenuto_tier_blocks", _GAUGE, "Blocks that can be found", "{}.registered", _TIER)
TIER_LEASED_BLOCKS = Metric("tenuto_tier_leased_blocks", _GAUGE, "Slots that are in use now", "{}.leased", _TIER)
TIER_CAPACITY_BLOCKS = Metric("tenuto_tier_capacity_blocks", _GAUGE, "Slots there are so far", "{}.total", _TIER)
TIER_BYTES = Metric(
    "tenuto_tier_bytes", _GAUGE, "Bytes of the blocks that can be found, on all ranks together", "{}.bytes", _TIER
)
TIER_CAPACITY_BYTES = Metric(
    "tenuto_tier_capacity_bytes", _GAUGE, "Bytes of the slots there are so far, on all ranks together",
    "{}.capacity_bytes", _TIER,
)  # fmt: skip
EVICTED_BLOCKS = Metric(
    "tenuto_evicted_blocks_total", _COUNTER, "Blocks that lost their slot to another", "{}.evictions", _TIER
)

EVENTS = Metric("tenuto_events_total", _COUNTER, "Events that were told to the publisher", "events")
EVENT_BATCHES = Metric("tenuto_event_batches_total", _COUNTER, "Batches that were sent", "events.batches")
EVENTS_LOST = Metric(
    "tenuto_lost_events_total", _COUNTER, "Events that were not published, for want of room: readers take a snapshot",
    "events.lost",
)  # fmt: skip
EVENT_SNAPSHOTS = Metric(
    "tenuto_event_snapshots_total", _COUNTER, "Readers that were given all blocks", "events.snapshots"
)
EVENT_REPLAYS = Metric("tenuto_event_replays_total", _COUNTER, "Readers that were given old batches", "events.replays")
EVENT_LAG = Metric("tenuto_waiting_events", _GAUGE, "Events that wait to be sent", "events.lag")
EVENT_LAG_SECONDS = Metric(
    "tenuto_event_lag_seconds", _GAUGE, "How long the oldest of them waits", "events.lag_seconds"
)

ROUTER_BATCHES = Metric("tenuto_router_batches_total", _COUNTER, "Batches that were sent to routers", "router.batches")
ROUTER_LOST = Metric(
    "tenuto_router_lost_events_total", _COUNTER, "Events that had no room on the way to routers",
    "router.lost",
)  # fmt: skip
ROUTER_LAG = Metric("tenuto_router_waiting_events", _GAUGE, "Events that wait on the way to routers", "router.lag")
ROUTER_BLOCKS = Metric("tenuto_router_blocks", _GAUGE, "Blocks that routers know of, as they count", "router.blocks")

TABLE = (
    ASKED_TOKENS, ENGINE_TOKENS, FOUND_TOKENS, GATED_TOKENS, LOADED_TOKENS, FAILED_TOKENS, LOADS, LOAD_SECONDS,
    LOOKUP_SECONDS, PREFILL_RATE, LOAD_RATE,
    TRANSFERRED_BLOCKS, TRANSFERRED_BYTES, TRANSFER_SECONDS, FAILED_BLOCKS, CORRUPT_BLOCKS, SKIPPED_BLOCKS,
    IN_FLIGHT, BACKLOG_BLOCKS, PEER_BLOCKS, REQUESTS,
    TIER_BLOCKS, TIER_LEASED_BLOCKS, TIER_CAPACITY_BLOCKS, TIER_BYTES, TIER_CAPACITY_BYTES, EVICTED_BLOCKS,
    EVENTS, EVENT_BATCHES, EVENTS_LOST, EVENT_SNAPSHOTS, EVENT_REPLAYS, EVENT_LAG, EVENT_LAG_SECONDS,
    ROUTER_BATCHES, ROUTER_LOST, ROUTER_LAG, ROUTER_BLOCKS,
)  # fmt: skip
BY_NAME = {metric.name: metric for metric in TABLE}


@functools.cache  # there are few, and they are asked for in every step
def series(metric: Metric, *labels: str) -> str:
    """A metric with its label values, which have no spaces."""
    return " ".join((metric.name, *labels))


@functools.cache
def parse_series(text: str) -> tuple[Metric, tuple[str, ...]]:
    """The metric and the label values of a series. Raises `KeyError` for a metric that is not in the table."""
    name, *labels = text.split(" ")
    return BY_NAME[name], tuple(labels)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All series at one moment. A histogram is [sum, observations in bucket 0, in bucket 1, ...], not cumulated."""

    values: dict[str, float]
    histograms: dict[str, list[float]]

    def flat(self) -> dict[str, int]:
        """Counters and gauges by their keys, for `statistics()`."""
        figures: dict[str, int] = {}
        for text, value in self.values.items():
            metric, labels = parse_series(text)
            figures[metric.key.format(*labels)] = int(value)
        return figures


@dataclass(slots=True)
class Changes:
    """What was recorded in an interval: counters' growth, gauges as they are now, and what was observed, in order."""

    values: dict[str, float] = field(default_factory=dict[str, float])
    observations: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


class Recorder:
    """Counts. `add` and `observe` on one thread or several; `snapshot` from any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, float] = {m.name: 0 for m in TABLE if m.kind is Kind.COUNTER and not m.labels}
        self._histograms: dict[str, list[float]] = {}
        self._watched: list[Callable[[], Mapping[str, float]]] = []
        self._changes: Changes | None = None
        self._told: Mapping[str, float] = {}  # the watched, at the last `changes`

    def add(self, metric: Metric, n: float, *labels: str) -> None:
        """Count `n` more."""
        if not n:
            return
        name = series(metric, *labels)
        with self._lock:
            self._counters[name] = self._counters.get(name, 0) + n
            if self._changes is not None:
                self._changes.values[name] = self._changes.values.get(name, 0) + n

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """Count one observation of a histogram."""
        name = series(metric, *labels)
        with self._lock:
            row = self._histograms.get(name)
            if row is None:
                row = self._histograms[name] = [0.0] * (len(SECONDS_BUCKETS) + 2)
            row[0] += seconds
            row[1 + bisect_left(SECONDS_BUCKETS, seconds)] += 1
            if self._changes is not None:
                self._changes.observations.setdefault(name, []).append(seconds)

    def watch(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Have `read` asked for series at every snapshot, from whatever thread takes it."""
        self._watched.append(read)

    def snapshot(self) -> Snapshot:
        """Everything as it is now."""
        watched = self._read_watched()
        with self._lock:
            return Snapshot(self._counters | watched, {name: list(row) for name, row in self._histograms.items()})

    def follow(self) -> None:
        """Keep what changes from now on, for one reader, who must call `changes` again and again."""
        self._changes = Changes()

    def changes(self) -> Changes:
        """What was recorded since the last call, or since `follow`; of the watched, what is new or not as it was."""
        watched = self._read_watched()
        with self._lock:
            assert self._changes is not None, "nobody has called follow()"
            news, self._changes = self._changes, Changes()
        told, self._told = self._told, watched
        for name, value in watched.items():
            if value != told.get(name):
                is_counter = parse_series(name)[0].kind is Kind.COUNTER
                news.values[name] = value - told.get(name, 0) if is_counter else value
        return news

    def _read_watched(self) -> dict[str, float]:
        return {name: value for read in self._watched for name, value in read().items()}
