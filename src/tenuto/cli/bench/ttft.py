"""Time to first token of one prompt in a real engine: computed, and found in each tier, beside vLLM's own tiers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from tenuto.cli.bench.engines.budget import Budget
from tenuto.cli.bench.engines.diskrate import READERS, DiskMeter
from tenuto.cli.bench.engines.fleet import Fleet
from tenuto.cli.bench.engines.messages import Asked
from tenuto.cli.bench.engines.options import EngineOptions
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
from tenuto.cli.bench.ttft_figures import Case, Times, in_words, plan_cycle, ttft_details, ttft_figures
from tenuto.errors import ConfigError, TenutoError
from tenuto.tiers.disk.instance import file_system

GIB = 1 << 30
IN_MEMORY = ("off", "ours", "native", "lmcache")
ON_DISK = ("ours_disk", "ours_gate", "native_disk")
_MEMORY_SHARE = 0.5
"""Of the budget, for lengths other than the figures', when there are disk hits to come."""
_SPACE = {"ours_disk": 1.35, "native_disk": 1.05, "ours_gate": 1.35}
"""Disk space of each engine over the bytes that it keeps; who is left out last comes first."""


@dataclass(frozen=True, slots=True)
class TtftSizes:
    """Lengths in tokens. The figures are those of `n_figure`, from `n_rounds` rounds; other lengths have fewer.

    `host_copies`: host memory of the engines without a disk tier, in prompts of the longest length;
    `disk_host_bytes`: that of the engines with one.
    """

    lengths: tuple[int, ...] = (4096, 8192, 32768, 65536)
    disk_lengths: tuple[int, ...] = (4096, 8192, 32768)
    n_figure: int = 32768
    n_rounds: int = 9
    n_other_rounds: int = 3
    host_copies: int = 2
    disk_host_bytes: int = 6 * GIB
    wire_bytes: int = GIB
    page_tokens: int = 16
    block_tokens: int = 0
    has_gate: bool = True
    variants: tuple[str, ...] = (*IN_MEMORY, *ON_DISK)

    @property
    def names(self) -> tuple[str, ...]:
        """Variants whose needs are installed."""
        return tuple(name for name in self.variants if is_there(name))


QUICK = TtftSizes(
    lengths=(512, 1024), disk_lengths=(512, 1024), n_figure=1024, n_rounds=2, n_other_rounds=1,
    disk_host_bytes=3 << 20, wire_bytes=1 << 22, page_tokens=32, block_tokens=64,
    has_gate=False, variants=("off", "ours", "ours_disk"),
)  # fmt: skip


def choose_sizes(options: EngineOptions, *, is_quick: bool) -> TtftSizes:
    """The sizes that were asked for. The figures' length is the default's where it is measured, else the longest."""
    sizes = QUICK if is_quick else TtftSizes()
    lengths = options.tokens or sizes.lengths
    disk_lengths = options.disk_tokens or tuple(n for n in lengths if n <= max(sizes.disk_lengths)) or lengths
    n_rounds = options.repeats or sizes.n_rounds
    return replace(
        sizes, lengths=lengths, disk_lengths=disk_lengths, n_rounds=n_rounds,
        n_figure=sizes.n_figure if sizes.n_figure in lengths else max(lengths),
        n_other_rounds=min(sizes.n_other_rounds, n_rounds), variants=options.variants or sizes.variants,
    )  # fmt: skip


def measure_ttft(folder: Path, options: EngineOptions, sizes: TtftSizes, *, is_quick: bool = False) -> Measured:
    """Times from handing a prompt to an engine that is idle to its first token; engines take turns within each round.

    First engines without a disk tier. A round: a prompt never seen (cold), the same again (engine), the same when the
    engine's own cache was emptied (host). Then engines with a disk tier behind a small host tier, each asked the same
    prompts in the same order again and again, so many that host memory has lost each when its turn comes (disk), and
    the engine without connector with prompts never seen (recompute). What a prompt leaves to be written is waited for
    before the next. Between rounds: pinned copies to the device, and a file as big as the figures' prompt read around
    the page cache, by 8 or by 16 threads in turn, of which the better median counts. The first round of each kind of
    prompt is not counted.
    """
    budget = Budget(options.budget_s)
    model = choose_model(options.model, folder / "model", is_quick=is_quick)
    with Fleet(folder, budget) as fleet:
        bench = _Bench(folder, fleet, budget, model, sizes)
        bench.run(is_eager=options.eager or is_quick)
        figures = ttft_figures(bench.times, sizes.n_figure)
        details = ttft_details(bench.times) | bench.rounds | {
            "left_out": fleet.left_out,
            "figures_at_tokens": sizes.n_figure,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "method": " ".join((measure_ttft.__doc__ or "").split()),
        }  # fmt: skip
        return Measured(figures, file_system(folder), fleet.versions, fleet.gpu, details)


class _Bench:
    """One run."""

    def __init__(self, folder: Path, fleet: Fleet, budget: Budget, model: Model, sizes: TtftSizes) -> None:
        self._folder, self._fleet, self._budget, self._model, self._sizes = folder, fleet, budget, model, sizes
        self._in_memory = [name for name in sizes.names if name in IN_MEMORY]
        self._on_disk = [name for name in sizes.names if name in ON_DISK]
        self._cycle = plan_cycle(sizes.disk_lengths, model.kv_bytes_per_token, sizes.disk_host_bytes)
        self._n_prompts = 0
        self.times = Times(model.kv_bytes_per_token)
        self.rounds: dict[str, dict[str, int]] = {"memory_rounds": {}, "disk_rounds": {}}

    def run(self, *, is_eager: bool) -> None:
        self._on_disk = self._with_space()
        self._in_memory = self._start(self._in_memory, is_eager=is_eager, is_first=True)
        try:
            self._all_memory_rounds()
        except TenutoError as error:
            self._fleet.leave_out("the rest in memory", error)
        self._fleet.end(*[name for name in self._in_memory if name != "off"])
        if self._on_disk:
            self._on_disk = self._start(self._on_disk, is_eager=is_eager, is_first=False)
        if self._on_disk:
            try:
                self._disk_rounds()
            except TenutoError as error:
                self._fleet.leave_out("the rest on disk", error)

    def _all_memory_rounds(self) -> None:
        sizes = self._sizes
        self._memory_rounds(sizes.n_figure, sizes.n_rounds, share=1.0, least=2)
        share = _MEMORY_SHARE if self._on_disk else 1.0
        for length in sorted(set(sizes.lengths) - {sizes.n_figure}):
            self._memory_rounds(length, sizes.n_other_rounds, share=share, least=0)

    def _start(self, names: Sequence[str], *, is_eager: bool, is_first: bool) -> list[str]:
        """Those that are there."""
        sizes, per_token = self._sizes, self._model.kv_bytes_per_token
        longest = max(*sizes.lengths, *sizes.disk_lengths)
        host_bytes = sizes.host_copies * longest * per_token
        engine = EngineSizes(
            kv_cache_bytes=(longest + longest // 8 + 16 * sizes.page_tokens) * per_token, max_tokens=longest + 64,
            page_tokens=sizes.page_tokens, is_eager=is_eager,
        )  # fmt: skip
        on_disk = Storage(sizes.disk_host_bytes, self._folder, self._kept_bytes, sizes.block_tokens, sizes.has_gate)
        in_memory = Storage(host_bytes, self._folder, 0, sizes.block_tokens, sizes.has_gate)
        options = {
            name: engine_options(
                self._model, engine,
                connector(name, replace(on_disk, folder=self._folder / name) if name in ON_DISK else in_memory),
            )
            for name in names
        }  # fmt: skip
        self._fleet.start(
            options, self._model.vocab, environment=lmcache_environment(host_bytes), is_alone=is_first and not is_eager
        )
        return self._fleet.alive(names)

    def _memory_rounds(self, length: int, n_rounds: int, *, share: float, least: int) -> None:
        rounds = self._budget.rounds(f"{length} tokens in memory", n_rounds + 1, share=share, least=least)
        for number in rounds:
            self._n_prompts += 1
            seed = self._n_prompts
            for name, child in self._fleet.turns(self._in_memory, number):
                self._take(number, Case(name, "cold", length), child.ask(seed, length))
                child.settle()
                self._take(number, Case(name, "engine", length), child.ask(seed, length))
                child.forget()
                if name != "off":
                    self._take(number, Case(name, "host", length), child.ask(seed, length))
                    child.forget()
            self.times.wire += self._fleet["off"].wire(self._sizes.wire_bytes)
        self.rounds["memory_rounds"][str(length)] = max(0, rounds.n_made - 1)
        self._say_medians("cold", "engine", "host", n_tokens=length)

    def _disk_rounds(self) -> None:
        seeds = {prompt: self._n_prompts + index for index, prompt in enumerate(self._cycle, start=1)}
        self._n_prompts += len(seeds)
        for (length, _), seed in seeds.items():
            for name, child in self._fleet.turns(self._on_disk, 0):
                self._take(1, Case(name, "cold", length), child.ask(seed, length))
                child.forget()
        self._budget.say(f"{len(seeds)} prompts are on disk in {', '.join(self._on_disk)}")
        n_bytes = self._sizes.n_figure * self._model.kv_bytes_per_token
        with closing(DiskMeter(self._folder / "ceiling", n_bytes)) as meter:
            rounds = self._budget.rounds("disk", self._sizes.n_rounds + 1, least=2)
            for number in rounds:
                for (length, copy), seed in seeds.items():
                    self._disk_turn(number, length, copy, seed)
                n_threads = READERS[number % len(READERS)]
                self.times.disk.setdefault(n_threads, []).append(meter.measure(n_threads))
        self.rounds["disk_rounds"]["all"] = rounds.n_made - 1
        self._say_medians("disk", "recompute")

    def _disk_turn(self, number: int, length: int, copy: int, seed: int) -> None:
        beside = ["off"] if copy == 0 else []
        for name, child in self._fleet.turns([*self._on_disk, *beside], number):
            if name == "off":
                self._n_prompts += 1
                self._take(number, Case(name, "recompute", length), child.ask(self._n_prompts, length))
            else:
                self._take(number, Case(name, "disk", length), child.ask(seed, length))
            child.forget()

    def _say_medians(self, *kinds: str, n_tokens: int | None = None) -> None:
        for line in in_words(self.times, kinds, n_tokens):
            self._budget.say(line)

    def _take(self, number: int, case: Case, asked: Asked) -> None:
        if number > 0:
            self.times.asked[case].append(asked)

    @property
    def _kept_bytes(self) -> int:
        return self._model.kv_bytes_per_token * sum(length for length, _ in self._cycle)

    def _with_space(self) -> list[str]:
        """Engines whose disk tiers fit together. Raises `ConfigError` when none does."""
        free = shutil.disk_usage(self._folder).free - self._sizes.n_figure * self._model.kv_bytes_per_token
        chosen: list[str] = []
        for name in [name for name in _SPACE if name in self._on_disk]:
            needed = int(_SPACE[name] * self._kept_bytes)
            if needed <= free:
                chosen.append(name)
                free -= needed
            elif chosen:
                self._fleet.leave_out(name, TenutoError(f"{needed / 1e9:.1f} GB of disk more are needed"))
            else:
                raise ConfigError(
                    f"--dir: a disk tier needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
                    "give a folder on another disk, shorter --disk-tokens, or --variants without one"
                )
        return chosen
