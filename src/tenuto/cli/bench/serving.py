"""Traffic of many sessions through real engines: with our connector, without one, with vLLM's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tenuto.cli.bench.engines.budget import Budget
from tenuto.cli.bench.engines.fleet import Fleet
from tenuto.cli.bench.engines.messages import Window
from tenuto.cli.bench.engines.options import FRESH, RATES, SATURATED, WORKLOADS, EngineOptions
from tenuto.cli.bench.engines.traffic import Traffic
from tenuto.cli.bench.engines.variants import (
    EngineSizes,
    Model,
    Storage,
    choose_model,
    connector,
    engine_options,
    is_there,
    lmcache_environment,
)
from tenuto.cli.bench.measured import Measured
from tenuto.cli.bench.serving_figures import Place, in_words, serving_details, serving_figures
from tenuto.errors import ConfigError, TenutoError

GIB = 1 << 30
_FRESH = Traffic(0, 64, 1, 1024, 0, 128, n_clients=32)
_SATURATED = Traffic(0, 48, 4, 2048, 512, 128, n_clients=16)
_SHARES = {FRESH: 0.6, SATURATED: 0.85}
"""Of the budget, by which these rounds have ended; the rates have what is left."""


@dataclass(frozen=True, slots=True)
class ServingSizes:
    """`fresh`: prompts with nothing in common. `saturated`: sessions, closed.

    `rates`: the same sessions, open, with pauses of `think_s`, in windows of about `window_s` of arrivals.
    """

    fresh: Traffic = _FRESH
    saturated: Traffic = _SATURATED
    rates: tuple[float, ...] = (4.0, 8.0, 12.0)
    think_s: float = 1.0
    window_s: float = 10.0
    n_rounds: int = 9
    n_saturated_rounds: int = 2
    n_rate_rounds: int = 2
    kv_cache_bytes: int = 12 * GIB
    host_bytes: int = 32 * GIB
    page_tokens: int = 16
    block_tokens: int = 0
    has_gate: bool = True
    variants: tuple[str, ...] = ("off", "ours", "native")
    workloads: tuple[str, ...] = WORKLOADS


QUICK = ServingSizes(
    fresh=Traffic(0, 6, 1, 64, 0, 8, n_clients=3), saturated=Traffic(0, 6, 2, 128, 64, 8, n_clients=3),
    rates=(40.0,), think_s=0.02, window_s=0.2, n_rounds=2, n_saturated_rounds=1, n_rate_rounds=1,
    kv_cache_bytes=2 << 20, host_bytes=32 << 20, page_tokens=32, block_tokens=64, has_gate=False,
    variants=("off", "ours"),
)  # fmt: skip


def choose_sizes(options: EngineOptions, *, is_quick: bool) -> ServingSizes:
    """The sizes that were asked for."""
    sizes = QUICK if is_quick else ServingSizes()
    given = {"n_turns": options.turns, "first_tokens": options.first_tokens, "turn_tokens": options.turn_tokens,
             "answer_tokens": options.answer_tokens}  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    fresh = {name: value for name, value in given.items() if name in {"first_tokens", "answer_tokens"}}
    n_rounds = options.repeats or sizes.n_rounds
    return replace(
        sizes,
        fresh=msgspec.structs.replace(sizes.fresh, **fresh),
        saturated=msgspec.structs.replace(sizes.saturated, **given),
        rates=options.rates or sizes.rates,
        n_rounds=n_rounds,
        n_saturated_rounds=min(n_rounds, sizes.n_saturated_rounds),
        n_rate_rounds=min(n_rounds, sizes.n_rate_rounds),
        variants=options.variants or sizes.variants,
        workloads=options.workloads or sizes.workloads,
    )


def measure_serving(folder: Path, options: EngineOptions, sizes: ServingSizes, *, is_quick: bool = False) -> Measured:
    """Engines take turns, a window of the same traffic each; times are taken where the engine is stepped.

    `fresh`, for inter-token latency at saturation: prompts that have nothing in common, so that every engine computes
    the same and only the connector's own work differs; a fixed number is in flight at any time. `saturated`, for
    throughput: sessions of several turns, again a fixed number of requests in flight, first turns of all sessions
    before second ones; the engine's own cache is too small for all histories, host memory is not. `rate_*`: the
    same sessions as a Poisson process with pauses; a time to first token counts from when the request was due. A
    window ends when its last request has. The first round of `fresh` and of `saturated` is not counted.
    """
    for name in sizes.variants:
        if name not in {"off", "ours", "native", "lmcache"}:
            raise ConfigError(f"--variants: {name} has no part in serving; there are off, ours, native, lmcache")
    budget = Budget(options.budget_s)
    model = choose_model(options.model, folder / "model", is_quick=is_quick)
    with Fleet(folder, budget) as fleet:
        bench = _Bench(folder, fleet, budget, model, sizes)
        bench.run(is_eager=options.eager or is_quick)
        details = {
            "windows": serving_details(bench.windows),
            "rounds": bench.rounds,
            "left_out": fleet.left_out,
            "traffic": {FRESH: msgspec.to_builtins(sizes.fresh), SATURATED: msgspec.to_builtins(sizes.saturated)},
            "kv_cache_bytes": sizes.kv_cache_bytes,
            "host_bytes": sizes.host_bytes,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "method": " ".join((measure_serving.__doc__ or "").split()),
        }
        return Measured(serving_figures(bench.windows), "", fleet.versions, fleet.gpu, details)


class _Bench:
    """One run."""

    def __init__(self, folder: Path, fleet: Fleet, budget: Budget, model: Model, sizes: ServingSizes) -> None:
        self._folder, self._fleet, self._budget, self._model, self._sizes = folder, fleet, budget, model, sizes
        self._names = [name for name in sizes.variants if is_there(name)]
        self._n_windows = 0
        self.windows: dict[Place, list[Window]] = defaultdict(list)
        self.rounds: dict[str, int] = {}

    def run(self, *, is_eager: bool) -> None:
        sizes = self._sizes
        self._start(is_eager=is_eager)
        try:
            if FRESH in sizes.workloads:
                self._rounds({FRESH: sizes.fresh}, sizes.n_rounds, self._share(FRESH), n_warm=1)
            if SATURATED in sizes.workloads:
                self._rounds({SATURATED: sizes.saturated}, sizes.n_saturated_rounds, self._share(SATURATED), n_warm=1)
            if RATES in sizes.workloads:
                rates = {f"rate_{rate:g}": self._at(rate) for rate in sorted(sizes.rates)}
                self._rounds(rates, sizes.n_rate_rounds, 1.0, n_warm=0)
        except TenutoError as error:
            self._fleet.leave_out("the rest", error)

    def _share(self, workload: str) -> float:
        """Of the budget, by which the rounds of a workload have ended: all of it for the last."""
        later = WORKLOADS[WORKLOADS.index(workload) + 1 :]
        return _SHARES[workload] if any(name in self._sizes.workloads for name in later) else 1.0

    def _at(self, rate_per_s: float) -> Traffic:
        sizes = self._sizes
        n_sessions = max(1, round(rate_per_s * sizes.window_s / sizes.saturated.n_turns))
        return msgspec.structs.replace(
            sizes.saturated, n_sessions=n_sessions, rate_per_s=rate_per_s, think_s=sizes.think_s
        )

    def _start(self, *, is_eager: bool) -> None:
        sizes = self._sizes
        engine = EngineSizes(
            kv_cache_bytes=sizes.kv_cache_bytes,
            max_tokens=max(sizes.fresh.longest_tokens, sizes.saturated.longest_tokens) + 64,
            max_running=64, page_tokens=sizes.page_tokens, is_eager=is_eager,
        )  # fmt: skip
        storage = Storage(sizes.host_bytes, self._folder, 0, sizes.block_tokens, sizes.has_gate)
        options = {name: engine_options(self._model, engine, connector(name, storage)) for name in self._names}
        environment = lmcache_environment(sizes.host_bytes)
        self._fleet.start(options, self._model.vocab, environment=environment, is_alone=not is_eager)
        self._names = self._fleet.alive(self._names)

    def _rounds(self, workloads: dict[str, Traffic], n_rounds: int, share: float, *, n_warm: int) -> None:
        names: Sequence[str] = list(workloads)
        lasting_s = sum(traffic.arrivals_s for traffic in workloads.values()) * len(self._names)
        rounds = self._budget.rounds(
            ", ".join(names), n_rounds + n_warm, share=share, least=2 * n_warm, expected_s=lasting_s
        )
        for number in rounds:
            for workload, traffic in workloads.items():
                self._n_windows += 1
                window_of = msgspec.structs.replace(traffic, seed=self._n_windows, vocab=self._model.vocab)
                for variant, child in self._fleet.turns(self._names, number):
                    window = child.serve(window_of)
                    child.settle()
                    if number >= n_warm:
                        self.windows[Place(variant, workload)].append(window)
        for line in [line for name in names for line in in_words(self.windows, name)]:
            self._budget.say(line)
        self.rounds |= dict.fromkeys(names, rounds.n_made - n_warm)
