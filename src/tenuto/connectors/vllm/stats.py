"""Our metrics in vLLM's terms: its stats, which travel with a step's output, and its Prometheus metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from tenuto import metrics
from tenuto.metrics import SECONDS_BUCKETS, TABLE, Changes, Kind, Recorder, parse_series

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_INTERVAL_S = 0.25
_MIB = 1 << 20


class TenutoStats(KVConnectorStats):
    """What was counted in an interval; `data` is `Changes` as dicts of floats: it crosses processes as msgpack."""

    @classmethod
    def of(cls, changes: Changes) -> TenutoStats:
        """To be sent."""
        return cls({"values": changes.values, "observations": changes.observations})

    @classmethod
    def received(cls, data: dict[str, Any] | None) -> TenutoStats:
        """What grew, of what arrived, as a copy: the log line tells no gauges, and nothing of an idle interval."""
        changes: dict[str, Any] = data or {}
        changes = changes.get("data", changes)  # vLLM 0.27's MultiConnector sends the whole object
        values: dict[str, float] = changes.get("values", {})
        observations: dict[str, list[float]] = changes.get("observations", {})
        return cls(
            {
                "values": {name: value for name, value in values.items() if value and _is_counter(name)},
                "observations": {name: list(seen) for name, seen in observations.items()},
            }
        )

    def __getitem__(self, key: str) -> Any:
        """For vLLM 0.27's MultiConnector, which reads its children's stats as if they had always been sent."""
        return getattr(self, key)

    def reset(self) -> None:
        """Begin another interval."""
        self.data = {"values": {}, "observations": {}}

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not (self.data["values"] or self.data["observations"])

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add a later interval, or another engine's: counters add up, the later gauge counts."""
        values: dict[str, float] = self.data["values"]
        for name, value in other.data["values"].items():
            values[name] = values.get(name, 0) + value if _is_counter(name) else value
        for name, seen in other.data["observations"].items():
            self.data["observations"].setdefault(name, []).extend(seen)
        return self

    def reduce(self) -> dict[str, int | float]:
        """The interval in a few numbers, for vLLM's log line."""
        asked, in_engine = self._sum(metrics.ASKED_TOKENS), self._sum(metrics.ENGINE_TOKENS)
        loaded = self._sum(metrics.LOADED_TOKENS)
        moved = {r: self._sum(metrics.TRANSFERRED_BYTES, r) for r in ("host_to_device", "disk_to_device")}
        loads: list[float] = [
            seconds
            for name, seen in self.data["observations"].items()
            if parse_series(name)[0] is metrics.LOAD_SECONDS
            for seconds in seen
        ]
        return {
            "tokens asked": int(asked),
            "tokens in the engine": int(in_engine),
            "tokens loaded": int(loaded),
            "tokens failed": int(self._sum(metrics.FAILED_TOKENS)),
            # loads that end now may have been asked for in the interval before
            "hit rate (%)": round(min(100.0, 100 * loaded / asked), 1) if asked else 0.0,
            "loaded (MiB)": round(sum(moved.values()) / _MIB, 1),
            "mean load (ms)": round(1000 * sum(loads) / len(loads), 1) if loads else 0.0,
            "written to disk (MiB)": round(self._sum(metrics.TRANSFERRED_BYTES, "host_to_disk") / _MIB, 1),
            "blocks failed": int(self._sum(metrics.FAILED_BLOCKS)),
        }

    def _sum(self, metric: metrics.Metric, *labels: str) -> float:
        """Over all series of a metric with these label values, or with any."""
        found = ((*parse_series(name), value) for name, value in self.data["values"].items())
        return sum(value for of, has, value in found if of is metric and labels in ((), has))


def _is_counter(name: str) -> bool:
    return parse_series(name)[0].kind is Kind.COUNTER


class StatsFeed:
    """The scheduler side's stats, step by step; sparingly while requests run, since each costs the step some time."""

    def __init__(self, recorder: Recorder, clock: Callable[[], float] = time.monotonic) -> None:
        self._recorder = recorder
        self._clock = clock
        self._next_at = 0.0
        recorder.follow()

    def take(self, *, is_busy: bool) -> TenutoStats | None:
        """What is new; None when nothing is, or soon after the last while requests, and so more steps, are there."""
        now = self._clock()
        if is_busy and now < self._next_at:
            return None
        self._next_at = now + _INTERVAL_S
        stats = TenutoStats.of(self._recorder.changes())
        return None if stats.is_empty() else stats


_registered: list[Any] = []
"""Prometheus metrics of this process: vLLM makes them anew for each engine, but removes only its own before."""


class TenutoPromMetrics(KVConnectorPromMetrics):
    """Our metrics at vLLM's `/metrics`, under our names and with vLLM's labels before ours."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        while _registered:
            with suppress(KeyError):  # Ray's are not in the registry
                REGISTRY.unregister(_registered.pop())
        self._made = {metric.name: self._make(metric) for metric in TABLE}
        _registered.extend(self._made.values())
        for metric in TABLE:
            if not metric.labels:  # shown from the start, as zero
                for values in per_engine_labelvalues.values():
                    self._made[metric.name].labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Take in the stats of one engine's interval."""
        own = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data["values"].items():
            metric, labels = parse_series(name)
            child = self._made[metric.name].labels(*own, *labels)
            if metric.kind is Kind.COUNTER:
                child.inc(value)
            else:
                child.set(value)
        for name, seen in transfer_stats_data["observations"].items():
            metric, labels = parse_series(name)
            child = self._made[metric.name].labels(*own, *labels)
            for seconds in seen:
                child.observe(seconds)

    def _make(self, metric: metrics.Metric) -> Any:
        kinds: dict[Kind, tuple[Any, dict[str, Any]]] = {
            Kind.COUNTER: (self._counter_cls, {}),
            Kind.GAUGE: (self._gauge_cls, {"multiprocess_mode": "mostrecent"}),
            Kind.HISTOGRAM: (self._histogram_cls, {"buckets": SECONDS_BUCKETS}),
        }
        make, options = kinds[metric.kind]
        return make(metric.name, metric.help, [*self._labelnames, *metric.labels], **options)
