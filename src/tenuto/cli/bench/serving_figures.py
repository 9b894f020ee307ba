"""From windows of traffic to the figures of the bench `serving`. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tenuto.cli.bench.engines.messages import Window
from tenuto.cli.bench.engines.options import FRESH, SATURATED
from tenuto.cli.bench.result import Figures

_MS = 1e3


@dataclass(frozen=True, slots=True)
class Place:
    """Which traffic in which engine; `workload` is FRESH, SATURATED, or "rate_4" and so on."""

    variant: str
    workload: str

    def __str__(self) -> str:
        return f"{self.variant}.{self.workload}"


Windows = Mapping[Place, Sequence[Window]]


def serving_figures(windows: Windows) -> Figures:
    """Medians over rounds of ratios of one round, which has the same traffic for all; then what each engine saw.

    `itl_*`: ours over off, on fresh prompts. `throughput_*`: requests per second on the saturated multi-turn traffic.
    """
    each = {place: [_summarise_one(window) for window in some] for place, some in windows.items() if some}

    def ratio(name: str, workload: str, mine: str, other: str) -> float | None:
        rounds = zip(*(each.get(Place(variant, workload), []) for variant in (mine, other)), strict=False)
        ratios = [one[name] / two[name] for one, two in rounds if one[name] and two[name]]
        return round(median(ratios), 4) if ratios else None

    ratios = {
        "itl_median": ratio("itl_ms_median", FRESH, "ours", "off"),
        "itl_p99": ratio("itl_ms_p99", FRESH, "ours", "off"),
        "throughput_over_native": ratio("requests_per_s", SATURATED, "ours", "native"),
        "throughput_over_off": ratio("requests_per_s", SATURATED, "ours", "off"),
        "fresh_throughput_over_off": ratio("requests_per_s", FRESH, "ours", "off"),
        "native_itl_median": ratio("itl_ms_median", FRESH, "native", "off"),
        "native_itl_p99": ratio("itl_ms_p99", FRESH, "native", "off"),
    }
    figures = {name: value for name, value in ratios.items() if value is not None}
    for place in sorted(each, key=lambda place: (place.workload, place.variant)):
        figures |= {f"{place}.{name}": round(value, 4) for name, value in summarise(windows[place]).items()}
    return figures


def summarise(windows: Sequence[Window]) -> Figures:
    """Medians over the windows of each window's own figures."""
    each = [_summarise_one(window) for window in windows]
    return {name: median(one[name] for one in each) for name in each[0]}


def in_words(windows: Windows, workload: str) -> list[str]:
    """A line for each engine that had this traffic."""
    lines: list[str] = []
    for place, some in windows.items():
        if place.workload == workload and some:
            seen = summarise(some)
            ttft = f"TTFT {seen['ttft_ms_median']:.1f} ms (p99 {seen['ttft_ms_p99']:.1f})"
            itl = f"between tokens {seen['itl_ms_median']:.2f} ms (p99 {seen['itl_ms_p99']:.2f})"
            rest = f"{seen['requests_per_s']:.2f} requests/s, {seen['reused_share']:.0%} reused (n = {len(some)})"
            lines.append(f"  {place}: {ttft}, {itl}, {rest}")
    return lines


def serving_details(windows: Windows) -> dict[str, Any]:
    """Each window's figures, in their order."""
    return {
        str(place): [{name: round(value, 4) for name, value in _summarise_one(window).items()} for window in some]
        for place, some in windows.items()
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed (nearest rank); 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _summarise_one(window: Window) -> Figures:
    return {
        "ttft_ms_median": quantile(window.ttft_s, 0.5) * _MS,
        "ttft_ms_p99": quantile(window.ttft_s, 0.99) * _MS,
        "itl_ms_median": quantile(window.itl_s, 0.5) * _MS,
        "itl_ms_p99": quantile(window.itl_s, 0.99) * _MS,
        "requests_per_s": window.n_requests / window.elapsed_s,
        "answer_tokens_per_s": window.answer_tokens / window.elapsed_s,
        "reused_share": window.reused_tokens / max(1, window.prompt_tokens),
    }
