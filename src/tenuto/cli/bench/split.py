"""The optimal split of a prompt on disk in a real engine: its first tokens are loaded while the rest is computed."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tenuto.cli.bench.engines.budget import Budget
from tenuto.cli.bench.engines.diskrate import READERS, DiskMeter
from tenuto.cli.bench.engines.fleet import Fleet
from tenuto.cli.bench.engines.messages import Asked
from tenuto.cli.bench.engines.options import EngineOptions
from tenuto.cli.bench.engines.process import Child
from tenuto.cli.bench.engines.variants import EngineSizes, Model, Storage, choose_model, connector, engine_options
from tenuto.cli.bench.measured import Measured
from tenuto.cli.bench.result import Figures
from tenuto.cli.bench.split_figures import SplitTimes, in_words, split_details, split_figures
from tenuto.cli.trace.timeline import draw_timeline, extent
from tenuto.errors import ConfigError, TenutoError
from tenuto.memory.layout import choose_block_tokens
from tenuto.tiers.disk.instance import file_system
from tenuto.traces import hidden_share

_EIGHTHS = 8
_BEYOND = 1
"""Tokens behind the last whole block: something is always computed."""
_PIECES = (4, 2, 1)
"""For each prompt, how many it is computed in at first: steps of several lengths tell the gate what a step costs."""
_HOST_COPIES = 1.5
"""Host memory of ours over a prompt: one fits, and is gone when two others were there."""
_N_LEARNING = 2
"""Rounds of loads before any that is measured."""
_SPACE = 1.35
"""Disk space of an engine over the bytes that it keeps."""
_SHARES = (0.62, 1.0)
"""Of the budget, by which the rounds of each step size have ended."""


@dataclass(frozen=True, slots=True)
class SplitSizes:
    """`n_tokens`: of a prompt. `chunk_tokens`: what one step of the second engines computes; 0: there are none."""

    n_tokens: int = 32768
    chunk_tokens: int = 8192
    n_rounds: int = 5
    page_tokens: int = 16
    block_tokens: int = 0
    has_gate: bool = True


QUICK = SplitSizes(4096, chunk_tokens=1024, n_rounds=2, page_tokens=32, block_tokens=64, has_gate=False)
"""Without the gate: everything is loaded."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Two engines, one without a connector, and their samples; `suffix` ends the names of both, and of the figures."""

    suffix: str
    times: SplitTimes

    @property
    def off(self) -> str:
        return f"off{self.suffix}"

    @property
    def ours(self) -> str:
        return f"ours_split{self.suffix}"


def choose_sizes(options: EngineOptions, *, is_quick: bool) -> SplitSizes:
    """The sizes that were asked for. Raises `ConfigError` for several lengths, or one that is not whole blocks."""
    sizes = QUICK if is_quick else SplitSizes()
    if options.variants or options.disk_tokens:
        raise ConfigError("--variants, --disk-tokens: split has engines of its own, and all its prompts are on disk")
    if len(options.tokens) > 1:
        raise ConfigError("--tokens: split takes one length")
    n_tokens = options.tokens[0] if options.tokens else sizes.n_tokens
    if n_tokens % (_EIGHTHS * 256):  # the largest block there is
        raise ConfigError(f"--tokens: {n_tokens} is no multiple of {_EIGHTHS * 256}")
    chunk_tokens = sizes.chunk_tokens if sizes.chunk_tokens < n_tokens else 0
    return replace(sizes, n_tokens=n_tokens, chunk_tokens=chunk_tokens, n_rounds=options.repeats or sizes.n_rounds)


def measure_split(folder: Path, options: EngineOptions, sizes: SplitSizes, *, is_quick: bool = False) -> Measured:
    """Times from handing a prompt to an engine that is idle to its first token; all engines run eagerly.

    Two engines for each step size: one step for the whole prompt, then `max_num_batched_tokens` as the suffix says. One
    has no connector; ours loads layer by layer ("onboard": "auto"), as much as its cost gate finds worth it, without
    asynchronous scheduling, which loads from disk would not allow. Prompts have one token behind the last whole block.
    Ours gets three, and host memory for one and a half, so that each was evicted when its turn comes again; at first
    they are computed in four pieces, in two, in one, so that the gate learns what steps cost. Two rounds of loads teach
    it what those cost.

    A round, whose engines take turns, has: every prompt once from disk (split); one of them computed by the engine
    without connector, after its own cache was emptied (recompute), and others that share 7/8, 6/8, ... 1/8 of it, and
    itself again, so that computing the rest is timed by where it begins; a file as big as a prompt read around the
    page cache, by 8 or 16 threads in turn, of which the better median counts. The first round is not counted.

    `bound`: the least, over all whole blocks x, of max(load of x, computing the first step after x) + computing what is
    left, from the medians of these, straight from one of them to the next; as later tokens cost more, the true bound
    is no lower. `bound_lookahead`: if loads could run beside all steps. `bound_async`: if computing waited for loads.
    `load_hidden` is of one more load, whose layers' computing was timed too, and which is the picture.
    """
    budget = Budget(options.budget_s)
    model = choose_model(options.model, folder / "model", is_quick=is_quick)
    with Fleet(folder, budget) as fleet:
        bench = _Bench(folder, fleet, budget, model, sizes)
        bench.run()
        details = {part.ours: split_details(part.times) for part in bench.parts} | {
            "rounds": bench.rounds,
            "left_out": fleet.left_out,
            "n_tokens": sizes.n_tokens,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "method": " ".join((measure_split.__doc__ or "").split()),
        }
        return Measured(bench.figures(), file_system(folder), fleet.versions, fleet.gpu, details, bench.picture())


class _Bench:
    """One run."""

    def __init__(self, folder: Path, fleet: Fleet, budget: Budget, model: Model, sizes: SplitSizes) -> None:
        self._folder, self._fleet, self._budget, self._model, self._sizes = folder, fleet, budget, model, sizes
        self._seeds = range(1, 1 + len(_PIECES))
        self._n_seeds = len(self._seeds)
        self._prompt_bytes = sizes.n_tokens * model.kv_bytes_per_token
        self._traced: Asked | None = None
        self.parts: list[_Part] = []
        self.rounds: dict[str, int] = {}
        self._add_part("", sizes.n_tokens + 256)
        if sizes.chunk_tokens:
            self._add_part(_suffix(sizes.chunk_tokens), sizes.chunk_tokens)

    def run(self) -> None:
        self._drop_parts_without_space()
        self._start()
        with closing(DiskMeter(self._folder / "ceiling", self._prompt_bytes)) as meter:
            for part, share in zip(self.parts, _SHARES, strict=False):
                try:
                    self._measure(part, meter, share if len(self.parts) > 1 else 1.0)
                except TenutoError as error:
                    self._fleet.leave_out(f"the rest of {part.ours}", error)

    def figures(self) -> Figures:
        """Of all parts."""
        figures: Figures = {}
        for part in self.parts:
            figures |= split_figures(part.times, part.suffix)
        hidden = None if self._traced is None else hidden_share(self._traced.spans)
        return figures if hidden is None else figures | {"load_hidden": round(hidden, 4)}

    def picture(self) -> str:
        """The traced load, without the stores behind it; nothing where there is none."""
        traced = self._traced
        if traced is None or not traced.spans:
            return ""
        loaded = traced.reused_tokens
        title = f"Of {self._sizes.n_tokens} tokens on disk {loaded} are loaded while the others are computed"
        shown = [span for span in traced.spans if span.name not in {"store", "gather"}]
        return draw_timeline(traced.spans, title, extent(shown))

    def _add_part(self, suffix: str, step_tokens: int) -> None:
        sizes, model = self._sizes, self._model
        per_layer = model.kv_bytes_per_token // model.n_layers
        block_tokens = choose_block_tokens(sizes.block_tokens, sizes.page_tokens, per_layer)
        self.parts.append(
            _Part(suffix, SplitTimes(sizes.n_tokens, step_tokens, model.kv_bytes_per_token, block_tokens))
        )

    def _drop_parts_without_space(self) -> None:
        """Raises `ConfigError` when there is none for one."""
        needed = int(_SPACE * len(self._seeds) * self._prompt_bytes)
        n_parts = (shutil.disk_usage(self._folder).free - self._prompt_bytes) // needed
        if n_parts < 1:
            raise ConfigError(f"--dir: {(needed + self._prompt_bytes) / 1e9:.1f} GB are needed there; give another")
        for part in self.parts[n_parts:]:
            self._fleet.leave_out(part.ours, TenutoError(f"{needed / 1e9:.1f} GB of disk more are needed"))
        del self.parts[n_parts:]

    def _start(self) -> None:
        options: dict[str, dict[str, Any]] = {}
        for part in self.parts:
            options[part.off] = self._options(part, "off", copies=2)
            options[part.ours] = self._options(part, "ours_split", copies=1)
        self._fleet.start(options, self._model.vocab, environment={}, is_alone=False)
        self.parts = [part for part in self.parts if self._fleet.alive([part.off])]

    def _options(self, part: _Part, variant: str, *, copies: int) -> dict[str, Any]:
        """`copies`: of a prompt that fit into the engine's KV cache."""
        sizes, model = self._sizes, self._model
        n_cached = copies * sizes.n_tokens + sizes.n_tokens // 8 + 16 * sizes.page_tokens
        engine = EngineSizes(
            kv_cache_bytes=n_cached * model.kv_bytes_per_token, max_tokens=sizes.n_tokens + 64,
            page_tokens=sizes.page_tokens, is_eager=True, step_tokens=part.times.step_tokens,
            plans_ahead=None if variant == "off" else False,
        )  # fmt: skip
        kept_bytes = len(self._seeds) * self._prompt_bytes
        folder = self._folder / part.ours
        host_bytes = int(_HOST_COPIES * self._prompt_bytes)
        storage = Storage(host_bytes, folder, kept_bytes, sizes.block_tokens, sizes.has_gate)
        return engine_options(model, engine, connector(variant, storage))

    def _measure(self, part: _Part, meter: DiskMeter, share: float) -> None:
        """All of one step size."""
        names = self._fleet.alive([part.off, part.ours])
        if part.ours in names:
            self._fill(self._fleet[part.ours])
            for _ in range(_N_LEARNING):
                self._split(part, self._fleet[part.ours], is_counted=False)
        rounds = self._budget.rounds(f"split{part.suffix}", self._sizes.n_rounds + 1, share=share, least=2)
        for number in rounds:
            for name, child in self._fleet.turns(names, number):
                take = self._compute if name == part.off else self._split
                take(part, child, is_counted=number > 0)
            n_threads = READERS[number % len(READERS)]
            rate = meter.measure(n_threads)
            if number > 0:
                part.times.disk.setdefault(n_threads, []).append(rate)
        self.rounds[part.ours] = rounds.n_made - 1
        if not part.suffix and part.ours in names:
            self._traced = self._fleet[part.ours].ask(self._seeds[0], self._sizes.n_tokens + _BEYOND, is_traced=True)
        for line in in_words(part.times, part.suffix):
            self._budget.say(line)

    def _fill(self, ours: Child) -> None:
        """Have every prompt on disk, computed in pieces."""
        n_tokens = self._sizes.n_tokens
        for seed, n_pieces in zip(self._seeds, _PIECES, strict=True):
            for piece in range(1, n_pieces):
                ours.ask(seed, piece * n_tokens // n_pieces)
            ours.ask(seed, n_tokens + _BEYOND)
            ours.forget()
        self._budget.say(f"{len(self._seeds)} prompts are on disk in {ours.name}")

    def _split(self, part: _Part, ours: Child, *, is_counted: bool) -> None:
        """Every prompt once."""
        for seed in self._seeds:
            asked = ours.ask(seed, self._sizes.n_tokens + _BEYOND)
            ours.forget()
            if is_counted:
                part.times.split.append(asked)
                part.times.loaded_answers.append((seed, asked.answer))

    def _compute(self, part: _Part, off: Child, *, is_counted: bool) -> None:
        """One prompt, and the rest of it by where it begins: what has more in common comes first, not to be evicted."""
        n_tokens = self._sizes.n_tokens
        seed = self._seeds[len(part.times.answers) % len(self._seeds)]
        for n_eighths in (0, *reversed(range(1, _EIGHTHS + 1))):
            n_shared = n_eighths * n_tokens // _EIGHTHS
            self._n_seeds += 1
            tail = seed if n_shared == 0 else self._n_seeds
            asked = off.ask(tail, n_tokens + _BEYOND, seed, n_shared)
            if asked.reused_tokens != n_shared:
                raise TenutoError(f"engine {off.name} had {asked.reused_tokens} of a prompt's tokens, not {n_shared}")
            if n_shared == 0:
                part.times.answers[seed] = asked.answer
            if is_counted:
                part.times.computed[n_shared].append(asked)
        off.forget()


def _suffix(n_tokens: int) -> str:
    return f"_{n_tokens // 1024}k" if n_tokens % 1024 == 0 else f"_{n_tokens}"
