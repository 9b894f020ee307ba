"""Numbers of two looks: rates, shares, and all of it for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tenuto import metrics
from tenuto.cli.top.looks import EventsSeen, Holding, MetricsLook, MetricsSeen, Seen, Values, WorkerLook
from tenuto.metrics import BY_NAME, Kind, Metric, series

HIT_TIERS = ("host", "disk", "peer")
_DOWN = ("tenuto_corrupt_blocks_total", "tenuto_failed_blocks_total", "tenuto_failed_tokens_total")


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's series at two looks; `before` is empty where there is one look, or the engine began anew.

    What comes to no finite number is not known.
    """

    model: str
    name: str
    now: Values
    before: Values
    seconds: float

    def value(self, metric: Metric, *labels: str, part: str = "") -> float:
        """As it is now; 0 for a series that has not appeared. `part` of a histogram: "_sum" or "_count"."""
        return self.now.get(_key(metric, labels, part), 0.0)

    def growth(self, metric: Metric, *labels: str, part: str = "") -> float | None:
        """Of a counter, since the look before; None where that is not known."""
        if not self.before:
            return None
        key = _key(metric, labels, part)
        return _finite(max(0.0, self.now.get(key, 0.0) - self.before.get(key, 0.0)))

    def rate(self, metric: Metric, *labels: str, part: str = "") -> float | None:
        """Of a counter, by second."""
        growth = self.growth(metric, *labels, part=part)
        return None if growth is None else _finite(growth / self.seconds)

    def mean(self, metric: Metric, *labels: str) -> float | None:
        """Of what a histogram observed between the looks; None for nothing."""
        n = self.growth(metric, *labels, part="_count")
        total = self.growth(metric, *labels, part="_sum")
        return _finite(total / n) if n and total is not None else None

    def labels(self, metric: Metric) -> list[tuple[str, ...]]:
        """The label values that its series have, in order of appearance."""
        names = metric.name + " "
        return [tuple(key.split(" ")[1:]) for key in self.now if key.startswith(names) and " " in key]

    def share(self, metric: Metric, *labels: str, since_start: bool) -> float | None:
        """Of the tokens asked for, between the looks or since the engine's start, from 0 to 1; None for no tokens.

        A load that ends now may have been asked for before.
        """
        read = self.value if since_start else self.growth
        asked, part = read(metrics.ASKED_TOKENS), read(metric, *labels)
        return min(1.0, max(0.0, part / asked)) if asked and part is not None else None

    def errors(self) -> list[str]:
        """What has failed since the engine's start: "12 disk_to_host timeout"."""
        found: list[str] = []
        for metric, word in (
            (metrics.CORRUPT_BLOCKS, "corrupt blocks"),
            (metrics.FAILED_BLOCKS, "blocks not moved"),
            (metrics.FAILED_TOKENS, "tokens failed"),
        ):
            found += [
                f"{n:,.0f} {word} ({', '.join(labels)})"
                for labels in self.labels(metric)
                if (n := self.value(metric, *labels))
            ]
        return found

    @property
    def has_new_errors(self) -> bool:
        """Whether some came since the look before."""
        return any(
            self.now[key] > self.before.get(key, 0.0)
            for key in self.now
            if self.before and key.startswith(_DOWN)
        )  # fmt: skip


def engines(seen: MetricsSeen) -> Iterator[Engine]:
    """Those of an endpoint, by model and name. While it is not seen, what was last is not what is now: no rates."""
    if seen.now is None:
        return
    last = None if seen.fault or seen.ended else seen.before
    for (model, name), now in sorted(seen.now.engines.items()):
        before, seconds = _values_before(last, seen.now, model, name)
        yield Engine(model, name, now, before, seconds)


def changes(seen: EventsSeen, worker: WorkerLook, holding: Holding) -> tuple[float, float] | None:
    """Blocks stored and removed by second, between the last two looks; None where there was one."""
    if seen.before is None or seen.ended:
        return None
    who = worker.node, worker.worker, worker.rank
    seconds = seen.now.at_s - seen.before.at_s
    old = next(
        (
            before
            for other in seen.before.workers
            if (other.node, other.worker, other.rank) == who
            for before in other.holdings
            if (before.tier, before.volume) == (holding.tier, holding.volume)
        ),
        None,
    )
    n_stored, n_removed = (old.n_stored, old.n_removed) if old else (0, 0)
    return (holding.n_stored - n_stored) / seconds, (holding.n_removed - n_removed) / seconds


def ended_text(fault: str) -> str:
    """Of a source that is not looked at any more; empty for others."""
    return f"looking at it has ended ({fault})" if fault else ""


def as_json(seen: Seen) -> dict[str, Any]:
    """All of it, for machines. Times are ages in seconds; what is not known is null."""
    return {
        "events": [_events_json(source) for source in seen.events],
        "metrics": [
            {
                "url": source.url,
                "fault": ended_text(source.ended) or source.fault,
                "seconds_ago": None if source.now is None else seen.at_s - source.now.at_s,
                "engines": [_engine_json(engine) for engine in engines(source)],
            }
            for source in seen.metrics
        ],
    }


def _events_json(source: EventsSeen) -> dict[str, Any]:
    now = source.now
    return {
        "url": source.url, "note": source.note, "fault": ended_text(source.ended), "is_answering": now.n_answering > 0,
        "n_gaps": now.n_gaps, "n_snapshots": now.n_snapshots,
        "workers": [
            {
                "node": worker.node, "worker": worker.worker, "rank": worker.rank,
                "silent_s": now.at_s - worker.heard_s, "lag_s": worker.lag_s,
                "n_snapshots": worker.n_snapshots, "n_lost": worker.n_lost,
                "tiers": [_holding_json(source, worker, holding) for holding in worker.holdings],
            }
            for worker in now.workers
        ],
    }  # fmt: skip


def _holding_json(source: EventsSeen, worker: WorkerLook, holding: Holding) -> dict[str, Any]:
    stored, removed = changes(source, worker, holding) or (None, None)
    return asdict(holding) | {
        "largest": [{"prefix": prefix, "n_blocks": n} for prefix, n in holding.largest],
        "stored_per_s": stored, "removed_per_s": removed,
    }  # fmt: skip


def _engine_json(engine: Engine) -> dict[str, Any]:
    """By the keys of `statistics()`."""
    values: dict[str, float] = {}
    rates: dict[str, float | None] = {}
    for text, value in engine.now.items():
        name, *labels = text.split(" ")
        metric = BY_NAME.get(name)
        if metric is None:
            continue
        key = metric.key.format(*labels)
        values[key] = value
        if metric.kind is Kind.COUNTER:
            rates[key] = engine.rate(metric, *labels)
    return {"engine": engine.name, "model": engine.model, "values": values, "per_s": rates}


def _values_before(before: MetricsLook | None, now: MetricsLook, model: str, name: str) -> tuple[Values, float]:
    """Nothing where a counter was higher: another engine."""
    nothing: Values = {}
    old = before.engines.get((model, name), nothing) if before else nothing
    new = now.engines[model, name]
    asked = metrics.ASKED_TOKENS.name
    is_anew = any(
        value > new.get(key, 0.0)
        for key, value in old.items()
        if (metric := BY_NAME.get(key.partition(" ")[0])) is None or metric.kind is Kind.COUNTER
    )
    if before is None or is_anew or asked not in old:
        return nothing, 1.0
    return old, max(1e-9, now.at_s - before.at_s)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _key(metric: Metric, labels: tuple[str, ...], part: str) -> str:
    return " ".join((metric.name + part, *labels)) if part else series(metric, *labels)
