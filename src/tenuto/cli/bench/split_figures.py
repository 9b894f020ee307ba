"""From times to first token to the figures of the bench `split`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tenuto.cli.bench.engines.diskrate import best_median
from tenuto.cli.bench.engines.messages import Asked
from tenuto.cli.bench.result import Figures
from tenuto.cli.bench.split_bound import Bound, SplitBounds

_MS = 1e3


@dataclass(slots=True)
class SplitTimes:
    """The samples of the engines that compute at most `step_tokens` in a step.

    `computed`: by how many tokens the engine without connector had already. `split`: of prompts on disk. `disk`: bytes
    per second by threads. `answers`: by seed, of who computed and of who loaded.
    """

    n_tokens: int
    step_tokens: int
    kv_bytes_per_token: int
    block_tokens: int
    computed: dict[int, list[Asked]] = field(default_factory=lambda: defaultdict[int, list[Asked]](list))
    split: list[Asked] = field(default_factory=list[Asked])
    disk: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    answers: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    loaded_answers: list[tuple[int, tuple[int, ...]]] = field(default_factory=list[tuple[int, tuple[int, ...]]])

    @property
    def disk_rate(self) -> float | None:
        """The better median."""
        return best_median(self.disk)

    def computed_s(self) -> dict[int, float]:
        """Medians."""
        return {n: _median_s(samples) for n, samples in sorted(self.computed.items()) if samples}

    def bounds(self) -> SplitBounds | None:
        """None while it is not known what computing all of the prompt, or nothing of it, takes, or what a load does."""
        computed_s, rate = self.computed_s(), self.disk_rate
        if not rate or not {0, self.n_tokens} <= computed_s.keys():
            return None
        return SplitBounds(computed_s, self.kv_bytes_per_token / rate, self.block_tokens)


def split_figures(times: SplitTimes, suffix: str = "") -> Figures:
    """Ratios of medians, and their parts; `suffix` ends each name. What was not measured has no figure."""
    figures: Figures = {}
    computed_s = times.computed_s()
    split_s = _median_s(times.split) if times.split else None
    bounds = times.bounds()
    bound = None if bounds is None else bounds.under_first_step(times.step_tokens)
    if split_s is not None and bound is not None:
        figures["split_over_bound"] = round(split_s / bound.seconds, 4)
    if split_s is not None and 0 in computed_s:
        figures["split_over_recompute"] = round(split_s / computed_s[0], 4)
    if split_s is not None:
        figures["split_ms"] = _in_ms(split_s)
        figures["split_tokens"] = median(asked.reused_tokens for asked in times.split)
        figures["compared_answers"], figures["different_answers"] = _compared(times)
    if 0 in computed_s:
        figures["recompute_ms"] = _in_ms(computed_s[0])
    if times.n_tokens in computed_s:
        figures["engine_hit_ms"] = _in_ms(computed_s[times.n_tokens])
    if rate := times.disk_rate:
        figures["load_gb_s"] = round(rate / 1e9, 3)
        figures["load_ms"] = _in_ms(times.n_tokens * times.kv_bytes_per_token / rate)
    if bounds is not None and bound is not None:
        figures |= _of_bound("bound", bound) | _of_bound("bound_async", bounds.one_after_the_other())
        if times.step_tokens < times.n_tokens:
            figures |= _of_bound("bound_lookahead", bounds.under_all_steps())
    return {name + suffix: value for name, value in figures.items()}


def split_details(times: SplitTimes) -> dict[str, Any]:
    """Every sample in its order, with what each of the loads brought and what the cost gate held of the rates."""
    return {
        "step_tokens": times.step_tokens,
        "computed_ms": {str(n): _all_ms(samples) for n, samples in sorted(times.computed.items())},
        "computed_had_tokens": {
            str(n): [asked.reused_tokens for asked in samples] for n, samples in sorted(times.computed.items())
        },
        "split_ms": _all_ms(times.split),
        "split_tokens": [asked.reused_tokens for asked in times.split],
        "split_computed_tokens": [times.n_tokens - asked.reused_tokens for asked in times.split],
        "loaded_tokens": {
            tier: [asked.loaded_tokens.get(tier, 0) for asked in times.split]
            for tier in sorted({tier for asked in times.split for tier in asked.loaded_tokens})
        },
        "gate_rates": {
            name: [asked.rates.get(name, 0) for asked in times.split]
            for name in sorted({name for asked in times.split for name in asked.rates})
        },
        "disk_gb_s": {str(n): [round(rate / 1e9, 3) for rate in rates] for n, rates in times.disk.items()},
    }


def in_words(times: SplitTimes, suffix: str) -> list[str]:
    """The figures that matter, a line each."""
    names = ("recompute_ms", "load_ms", "bound_ms", "split_ms", "split_tokens", "split_over_bound")
    figures = split_figures(times)
    return [f"  {name}{suffix}: {figures[name]:g}" for name in names if name in figures]


def _compared(times: SplitTimes) -> tuple[int, int]:
    """How many answers there are to compare, and how many of them differ from what computing said."""
    pairs = [(answer, times.answers[seed]) for seed, answer in times.loaded_answers if seed in times.answers]
    return len(pairs), sum(loaded != computed for loaded, computed in pairs)


def _of_bound(name: str, bound: Bound) -> Figures:
    return {f"{name}_ms": _in_ms(bound.seconds), f"{name}_tokens": bound.n_tokens}


def _median_s(samples: Sequence[Asked]) -> float:
    return median(asked.ttft_s for asked in samples)


def _all_ms(samples: Sequence[Asked]) -> list[float]:
    return [_in_ms(asked.ttft_s) for asked in samples]


def _in_ms(seconds: float) -> float:
    return round(seconds * _MS, 3)
