"""Loads and stores under a forward pass, layer by layer: what computing hides, and what is left to wait for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tenuto.cli.bench.layered_bed import MIB, Bed, BedSizes
from tenuto.cli.bench.measured import Measured
from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Figures
from tenuto.cli.bench.workfolder import work_folder
from tenuto.cli.trace.timeline import draw_timeline
from tenuto.errors import InvariantError
from tenuto.testing.kvshapes import ARRANGEMENTS, BENCHED, TINY
from tenuto.tiers.disk.instance import file_system
from tenuto.traces import Recorder, Span, hidden_share

RATIOS = {"half": 0.5, "one": 1.0, "two": 2.0}
"""Loading a layer over computing it, by the figures' names."""
DRAWN = "one"
_METHOD = (
    "rounds: loads alone (by layers), then computing alone, loads under computing, loads whole before computing, in "
    "turning order; computing is set to the loads' time of the round over the ratio; ratios are of one round, figures "
    "are medians over rounds; bound = max(L, C) + min(L, C) / layers, L the faster of the loads by layers alone and "
    "whole alone, C computing alone, all of the round"
)


@dataclass(frozen=True, slots=True)
class LayeredSizes:
    """What is moved, and how often."""

    bed: BedSizes
    n_rounds: int = 7


@dataclass(slots=True)
class _Samples:
    """Of one ratio, by round, in seconds."""

    by_layers_s: list[float] = field(default_factory=list[float])
    """Loads alone."""
    whole_s: list[float] = field(default_factory=list[float])
    """Loads alone, by blocks."""
    compute_s: list[float] = field(default_factory=list[float])
    layered_s: list[float] = field(default_factory=list[float])
    load_first_s: list[float] = field(default_factory=list[float])
    hidden: list[float] = field(default_factory=list[float])
    submits: list[float] = field(default_factory=list[float])
    """Calls of the store, a layer."""
    spans: list[list[Span]] = field(default_factory=list[list[Span]])

    def bounds_s(self, n_layers: int) -> list[float]:
        """When a pipeline that loses nothing would have computed the last layer."""
        return [
            max(load_s, compute_s) + min(load_s, compute_s) / n_layers
            for load_s, compute_s in zip(map(min, self.by_layers_s, self.whole_s), self.compute_s, strict=True)
        ]

    def as_json(self) -> dict[str, list[float]]:
        """Milliseconds and shares."""
        names = ("by_layers", "whole", "compute", "layered", "load_first")
        said = {f"{name}_ms": [round(sample_s * 1e3, 2) for sample_s in getattr(self, f"{name}_s")] for name in names}
        return said | {"load_hidden": [round(share, 4) for share in self.hidden]}


def choose_sizes(*, is_gpu: bool, is_quick: bool) -> LayeredSizes:
    """A Llama 3 8B: 8k tokens of it on a GPU; without one, 16 of its layers and 512 tokens, from a slowed store."""
    shape, arrangement = BENCHED["packed"]
    if is_quick:
        return LayeredSizes(BedSizes(TINY, ARRANGEMENTS["vllm-nhd-view"], 3, 0.0 if is_gpu else 0.002), 1)
    if is_gpu:
        return LayeredSizes(BedSizes(shape, arrangement, n_blocks=128), n_rounds=5)
    return LayeredSizes(BedSizes(replace(shape, n_layers=16), arrangement, n_blocks=8, layer_s=0.02))


def measure_layered(folder: Path, sizes: LayeredSizes, bar: Bar, *, is_gpu: bool) -> Measured:
    """Medians over interleaved rounds of forward passes whose layers are loaded, or stored, while others are computed.

    For load : compute per layer of 0.5 ("half"), 1 ("one") and 2 ("two"), with a `DiskStore` in `folder`: on the CPU
    slowed to a made-up rate, beside computing that sleeps; on a GPU as it is, beside products of matrices whose times
    are of the GPU's events. With L all loads alone (the faster of by layers and whole) and C all computing alone, of
    the same round, the bound is ``max(L, C) + min(L, C) / n_layers``: what can't overlap is the first layer's load
    where computing takes longer, the last layer's computing where loading does.

    `load_hidden`: the time in which loads and computing run over that in which loads do, by spans; `ttft_over_bound`:
    until the last layer is computed, over the bound; `load_first_over_bound`: the same with all blocks loaded whole
    before; `by_layers_over_whole`: loads alone; `store_over_without`: a forward with layered stores over one without,
    its computing as in "one"; on the CPU the engine's thread itself copies what it stores.
    Without a ratio's name: the worst of those with a target, which for `load_hidden` are "half" and "one". Every load
    is compared bit for bit, and what is written by layers is read whole, and the other way round: `InvariantError`.
    """
    with work_folder(folder) as work, closing(Bed(work, sizes.bed, is_gpu=is_gpu)) as bed:
        bed.check()
        samples = {name: _Samples() for name in RATIOS}
        stores: list[tuple[float, float, float]] = []
        for number in bar.over(range(sizes.n_rounds), "layered: rounds", sizes.n_rounds):
            for name, ratio in RATIOS.items():
                _round(bed, ratio, number, samples[name])
                if name == DRAWN:
                    stores.append(_stores(bed, number))
        bed.check()
        kind = file_system(work)
    figures = _figures(samples, stores, bed.n_layers)
    figures["layer_mib"] = round(sizes.bed.layer_bytes / MIB, 3)
    details: dict[str, Any] = {"method": _METHOD, "n_layers": bed.n_layers, "n_rounds": sizes.n_rounds}
    details["samples"] = {name: its.as_json() for name, its in samples.items()}
    details["stores_over_without"] = [round(with_s / without_s, 4) for with_s, without_s, _ in stores]
    return Measured(
        figures,
        kind,
        versions={"torch": torch.__version__},
        gpu=torch.cuda.get_device_name() if is_gpu else "",
        details=details,
        picture=_picture(samples[DRAWN], bed.n_layers, figures["layer_mib"]),
    )


def _round(bed: Bed, ratio: float, number: int, samples: _Samples) -> None:
    """One sample of each way."""
    by_layers_s = bed.load_layered(computes=False)
    bed.computing.layer_s = by_layers_s / bed.n_layers / ratio
    samples.by_layers_s.append(by_layers_s)

    def layered() -> None:
        n_before = bed.loads.n_reads
        with Recorder() as recorder:
            samples.layered_s.append(bed.load_layered())
        spans = recorder.spans()
        share = hidden_share(spans)
        if share is None:
            raise InvariantError("bench layered: loads have left no spans")
        samples.hidden.append(share)
        samples.submits.append((bed.loads.n_reads - n_before) / bed.n_layers)
        samples.spans.append(spans)

    def load_first() -> None:
        whole_s, took_s = bed.load_first()
        samples.whole_s.append(whole_s)
        samples.load_first_s.append(took_s)

    _in_turn(number, lambda: samples.compute_s.append(bed.compute()), layered, load_first)


def _stores(bed: Bed, number: int) -> tuple[float, float, float]:
    """Seconds of a forward with stores and without, and the share of the stores' time that computing hides."""
    taken: dict[str, float] = {}

    def stored() -> None:
        with Recorder() as recorder:
            taken["with"] = bed.store_layered()
        taken["hidden"] = hidden_share(recorder.spans(), work=("store",)) or 0.0

    def bare() -> None:
        taken["without"] = bed.compute()

    _in_turn(number, stored, bare)
    return taken["with"], taken["without"], taken["hidden"]


def _in_turn(number: int, *ways: Callable[[], None]) -> None:
    """All of them; in each round another one is first."""
    at = number % len(ways)
    for way in (*ways[at:], *ways[:at]):
        way()


def _figures(samples: dict[str, _Samples], stores: list[tuple[float, float, float]], n_layers: int) -> Figures:
    by_ratio: dict[str, Figures] = {}
    for name, its in samples.items():
        bounds_s = its.bounds_s(n_layers)
        by_ratio[name] = {
            "load_hidden": round(median(its.hidden), 4),
            "ttft_over_bound": _ratio(its.layered_s, bounds_s),
            "load_first_over_bound": _ratio(its.load_first_s, bounds_s),
            "layered_over_load_first": _ratio(its.layered_s, its.load_first_s),
            "load_over_compute": _ratio(its.by_layers_s, its.compute_s),
            "by_layers_over_whole": _ratio(its.by_layers_s, its.whole_s),
            "load_ms_per_layer": round(median(its.by_layers_s) * 1e3 / n_layers, 3),
            "compute_ms_per_layer": round(median(its.compute_s) * 1e3 / n_layers, 3),
        }
    figures: Figures = {
        "load_hidden": min(by_ratio[name]["load_hidden"] for name, ratio in RATIOS.items() if ratio <= 1.0),
        "ttft_over_bound": max(its["ttft_over_bound"] for its in by_ratio.values()),
        "submits_per_layer": max(max(its.submits) for its in samples.values()),
        "store_over_without": round(median(with_s / without_s for with_s, without_s, _ in stores), 4),
        "store_hidden": round(median(share for _, _, share in stores), 4),
    }
    return figures | {f"{key}_{name}": value for name, its in by_ratio.items() for key, value in its.items()}


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(median(mine / other for mine, other in zip(ours, theirs, strict=True)), 4)


def _picture(samples: _Samples, n_layers: int, layer_mib: float) -> str:
    """The round of the median ratio to the bound."""
    over = [took_s / bound_s for took_s, bound_s in zip(samples.layered_s, samples.bounds_s(n_layers), strict=True)]
    chosen = sorted(range(len(over)), key=over.__getitem__)[len(over) // 2]
    title = f"Loads under computing: {n_layers} layers of {layer_mib:g} MiB, load : compute = {RATIOS[DRAWN]:g}"
    return draw_timeline(samples.spans[chosen], title)
