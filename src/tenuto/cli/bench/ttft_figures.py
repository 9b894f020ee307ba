"""From times to first token to the figures of the bench `ttft`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tenuto.cli.bench.engines.diskrate import best_median
from tenuto.cli.bench.engines.messages import Asked
from tenuto.cli.bench.result import Figures

_MS = 1e3
_EVICTING = 1.05
"""Bytes of other prompts after which one is gone from host memory, over that memory."""


@dataclass(frozen=True, slots=True)
class Case:
    """What was asked of whom: `kind` is "cold", "engine", "host", "disk", or "recompute" (cold, beside disk hits)."""

    variant: str
    kind: str
    n_tokens: int

    def __str__(self) -> str:
        return f"{self.variant}.{self.kind}.{self.n_tokens}"


@dataclass(slots=True)
class Times:
    """All samples of one run, and the ceilings measured between them (bytes per second; `disk` by threads)."""

    kv_bytes_per_token: int
    asked: dict[Case, list[Asked]] = field(default_factory=lambda: defaultdict[Case, list[Asked]](list))
    wire: list[float] = field(default_factory=list[float])
    disk: dict[int, list[float]] = field(default_factory=dict[int, list[float]])

    def ttft_s(self, variant: str, kind: str, n_tokens: int) -> float | None:
        """The median, or None where nothing was measured."""
        samples = self.asked.get(Case(variant, kind, n_tokens))
        return median(asked.ttft_s for asked in samples) if samples else None


def ttft_figures(times: Times, n_tokens: int) -> Figures:
    """The ratios at one length, the ceilings, and the median of every case in milliseconds.

    A floor is the hit in the engine's own cache of an engine without connector, and the time that the prompt's bytes
    take at the ceiling of the same run.
    """
    n_bytes = n_tokens * times.kv_bytes_per_token
    wire = median(times.wire) if times.wire else None
    disk = best_median(times.disk)
    engine_hit = times.ttft_s("off", "engine", n_tokens)
    host_floor, disk_floor = (
        engine_hit + n_bytes / rate if engine_hit is not None and rate else None for rate in (wire, disk)
    )
    host_hit = times.ttft_s("ours", "host", n_tokens)
    disk_hit = times.ttft_s("ours_disk", "disk", n_tokens)
    gated = times.ttft_s("ours_gate", "disk", n_tokens)
    ratios = {
        "host_hit_over_floor": (host_hit, host_floor),
        "host_hit_over_native": (host_hit, times.ttft_s("native", "host", n_tokens)),
        "host_hit_over_lmcache": (host_hit, times.ttft_s("lmcache", "host", n_tokens)),
        "disk_hit_over_floor": (disk_hit, disk_floor),
        "disk_hit_over_native": (disk_hit, times.ttft_s("native_disk", "disk", n_tokens)),
        "disk_hit_over_recompute": (gated, times.ttft_s("off", "recompute", n_tokens)),
        "cold_over_off": (times.ttft_s("ours", "cold", n_tokens), times.ttft_s("off", "cold", n_tokens)),
        "native_cold_over_off": (times.ttft_s("native", "cold", n_tokens), times.ttft_s("off", "cold", n_tokens)),
    }
    figures = {name: round(mine / other, 4) for name, (mine, other) in ratios.items() if mine and other}
    figures |= {f"{name}_gb_s": round(rate / 1e9, 3) for name, rate in {"wire": wire, "disk": disk}.items() if rate}
    floors = {"host_floor_ms": host_floor, "disk_floor_ms": disk_floor}
    figures |= {name: round(floor * _MS, 3) for name, floor in floors.items() if floor}
    for case in _sorted(times):
        figures[f"{case}_ms"] = round(median(asked.ttft_s for asked in times.asked[case]) * _MS, 3)
    return figures


def ttft_details(times: Times) -> dict[str, Any]:
    """Every sample in its order, what was reused (tokens), and from which tier where that is known."""
    return {
        "samples_ms": {
            str(case): [round(asked.ttft_s * _MS, 3) for asked in times.asked[case]] for case in _sorted(times)
        },
        "reused_tokens": {
            str(case): int(median(asked.reused_tokens for asked in times.asked[case])) for case in _sorted(times)
        },
        "loaded_tokens": {
            str(case): _median_by_tier(times.asked[case])
            for case in _sorted(times)
            if any(asked.loaded_tokens for asked in times.asked[case])
        },
        "wire_gb_s": [round(rate / 1e9, 3) for rate in times.wire],
        "disk_gb_s": {str(n): [round(rate / 1e9, 3) for rate in rates] for n, rates in times.disk.items()},
    }


def in_words(times: Times, kinds: Sequence[str], n_tokens: int | None = None) -> list[str]:
    """A line for each case of these kinds, of this length where one is given: its median and how many stand for it."""
    return [
        f"  {case}: {median(asked.ttft_s for asked in times.asked[case]) * _MS:.1f} ms (n = {len(times.asked[case])})"
        for case in _sorted(times)
        if case.kind in kinds and n_tokens in {None, case.n_tokens}
    ]


def plan_cycle(lengths: Sequence[int], kv_bytes_per_token: int, host_bytes: int) -> list[tuple[int, int]]:
    """(length, copy) of prompts to be asked in turn, so many that each finds itself evicted from host memory.

    Least recently used goes first, so that is so when the others together more than fill it. One prompt of each
    length, longest first; while the others of the longest are too few, one more: the shortest that suffices, else the
    longest.
    """
    longest_first = sorted(set(lengths), reverse=True)
    cycle = [(length, 0) for length in longest_first]
    needed = int(_EVICTING * host_bytes)
    while (missing := needed - kv_bytes_per_token * (sum(n for n, _ in cycle) - longest_first[0])) > 0:
        enough = [n for n in longest_first if n * kv_bytes_per_token >= missing]
        length = enough[-1] if enough else longest_first[0]
        cycle.append((length, sum(n == length for n, _ in cycle)))
    return sorted(cycle, key=lambda prompt: (prompt[1], -prompt[0]))


def _sorted(times: Times) -> list[Case]:
    return sorted(times.asked, key=lambda case: (case.n_tokens, case.kind, case.variant))


def _median_by_tier(samples: Sequence[Asked]) -> dict[str, int]:
    tiers = sorted({tier for asked in samples for tier in asked.loaded_tokens})
    return {tier: int(median(asked.loaded_tokens.get(tier, 0) for asked in samples)) for tier in tiers}
