"""The cost gate: how much of a hit to load, so that the first token comes soonest.

Pure. What loading and computing cost is given (`rates` estimates it); times are in seconds, lengths in tokens, places
inside a prompt count from its first token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
_Place = TypeVar("_Place", int, Places)

_TIE = 1e-9
"""Relative; of lengths that take as long as each other the longest is loaded, since it leaves the engine to others."""


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """A step takes `step_s`, and `token_s` for each token, and `pair_s` for each pair of a token and one it attends to.

    `step_tokens`: the most that one step computes; 0: all in one. Assumes that a prompt has its steps for itself.
    """

    step_s: float
    token_s: float
    pair_s: float = 0.0
    step_tokens: int = 0

    def seconds(self, start: Places, stop: Places) -> Floats:
        """To compute tokens [start, stop) of prompts whose first `start` tokens are there; 0 for none."""
        n_tokens = stop - start
        n_steps = -(-n_tokens // self.step_tokens) if self.step_tokens else np.minimum(n_tokens, 1)
        return n_steps * self.step_s + n_tokens * self.token_s + n_pairs(start, stop) * self.pair_s

    def tokens_per_second(self) -> float:
        """In a full step (of a thousand tokens, where a step has no bound) that begins a prompt."""
        n = self.step_tokens or 1024
        return n / (self.step_s + n * self.token_s + n_pairs(0, n) * self.pair_s)


@dataclass(frozen=True, slots=True)
class LoadCost:
    """Consecutive blocks of one tier take `fixed_s`, and `byte_s` for each byte."""

    fixed_s: float
    byte_s: float

    def scaled(self, factor: float) -> LoadCost:
        """So many times as much."""
        return LoadCost(self.fixed_s * factor, self.byte_s * factor)

    def seconds(self, n_loads: int, n_bytes: int) -> float:
        """Of so many loads that bring so many bytes in all."""
        return n_loads * self.fixed_s + n_bytes * self.byte_s

    def behind(self, seconds: float) -> LoadCost:
        """When others come first, for so long."""
        return LoadCost(self.fixed_s + seconds, self.byte_s)


@dataclass(frozen=True, slots=True)
class Offer:
    """Blocks that can be loaded for a prompt of `n_tokens` tokens, of which the engine has `n_have`.

    `pieces`: (tier, blocks), in order; the first block is number `start` of the prompt. `block_bytes`: on all ranks.
    """

    pieces: tuple[tuple[str, int], ...]
    start: int
    n_have: int
    n_tokens: int
    block_tokens: int
    block_bytes: int

    @property
    def n_blocks(self) -> int:
        """Blocks that can be loaded."""
        return sum(n for _, n in self.pieces)

    def places(self) -> Places:
        """Where computing begins when 0, 1, ... `n_blocks` blocks are loaded. The last token is always computed."""
        ends = (self.start + np.arange(self.n_blocks + 1, dtype=np.int64)) * self.block_tokens
        return np.minimum(np.maximum(ends, self.n_have), self.n_tokens - 1)


def n_pairs(start: _Place, stop: _Place) -> _Place:
    """Pairs of a token in [start, stop) with itself or one before it, anywhere in the prompt."""
    return (stop * (stop + 1) - start * (start + 1)) // 2


def load_seconds(offer: Offer, loads: Mapping[str, LoadCost], overhead_s: float = 0.0) -> Floats:
    """What it takes to load the first 0, 1, ... `n_blocks` blocks; a tier without a cost is free.

    Pieces are taken one after the other. Lanes may overlap them, so this is the most that it takes. `overhead_s`:
    once for each load, whatever it brings.
    """
    parts = [np.zeros(1)]
    for tier, n_blocks in offer.pieces:
        cost = loads.get(tier, LoadCost(0.0, 0.0))
        part = np.full(n_blocks, offer.block_bytes * cost.byte_s)
        part[0] += cost.fixed_s
        parts.append(part)
    each = np.concatenate(parts)
    each[1] += overhead_s
    return np.cumsum(each)


def seconds_to_first_token(
    offer: Offer, compute: ComputeCost, loads: Mapping[str, LoadCost], *, overhead_s: float = 0.0,
    overlaps: bool = False,
) -> Floats:  # fmt: skip
    """Of a request that is alone, with 0, 1, ... `n_blocks` blocks loaded, and the rest computed.

    Computing begins when the load has ended; with `overlaps`, the first step after it runs beside the load, as when
    layers are loaded while those before them compute.
    """
    load = load_seconds(offer, loads, overhead_s)
    begin = offer.places()
    end = np.full_like(begin, offer.n_tokens)
    if not overlaps:
        return load + compute.seconds(begin, end)
    between = np.minimum(begin + compute.step_tokens, end) if compute.step_tokens else end
    return np.maximum(load, compute.seconds(begin, between)) + compute.seconds(between, end)


def delays(
    offer: Offer, compute: ComputeCost, loads: Mapping[str, LoadCost], *, overhead_s: float = 0.0,
    overlaps: bool = False, n_others: int = 0,
) -> Floats:  # fmt: skip
    """Seconds that the request and `n_others` beside it wait, all together, with 0, 1, ... `n_blocks` blocks loaded.

    While one loads the others go on, and while it computes they wait as long as it does. With `overlaps` they are in
    the step that waits for the load, too.
    """
    seconds = seconds_to_first_token(offer, compute, loads, overhead_s=overhead_s, overlaps=overlaps)
    if overlaps:
        return (n_others + 1) * seconds
    if n_others:
        begin = offer.places()
        seconds = seconds + n_others * compute.seconds(begin, np.full_like(begin, offer.n_tokens))
    return seconds


def choose(
    offer: Offer, compute: ComputeCost, loads: Mapping[str, LoadCost], *, overhead_s: float = 0.0,
    overlaps: bool = False, n_others: int = 0, most_s: float = math.inf, late: float = 1.0,
) -> int:  # fmt: skip
    """How many blocks to load, from the first on: what brings the first token soonest.

    With `n_others` requests that compute, what delays all of them together least. Nothing that takes longer than
    `most_s` is loaded. `late`: with `overlaps`, loads are taken to last so many times as long.
    """
    if overlaps:
        loads = _scaled(loads, late)
    seconds = delays(offer, compute, loads, overhead_s=overhead_s, overlaps=overlaps, n_others=n_others)
    return _least(seconds[: in_time(offer, loads, most_s, overhead_s) + 1])


@dataclass(frozen=True, slots=True)
class Choice:
    """Load the first `n_blocks` blocks; `is_layered`: under the forward that uses them, else before it."""

    n_blocks: int
    is_layered: bool = False


def choose_form(
    offer: Offer, compute: ComputeCost, loads: Mapping[str, LoadCost], *, n_layerable: int, overhead_s: float = 0.0,
    n_others: int = 0, most_s: float = math.inf, margin: float = 1.0, late: float = 1.0, is_whole: bool = False,
) -> Choice:  # fmt: skip
    """As `choose`, of both forms: under the forward while that delays all together no more than before it.

    At most the first `n_layerable` blocks can be loaded under the forward, and none where all tokens are loaded.
    `overhead_s` is of loads before it. `margin`: beside others, a load under the forward is taken to last so many
    times as long. `late`: alone, its length is chosen as if it lasted so many times as long. `is_whole`: all blocks are
    loaded, and only how is to be chosen.
    """
    apart = delays(offer, compute, loads, overhead_s=overhead_s, n_others=n_others)
    slower = _scaled(loads, margin) if n_others else loads
    under = delays(offer, compute, slower, overlaps=True, n_others=n_others)
    last = min(n_layerable, n_leaving(offer))
    if is_whole:
        n, can = offer.n_blocks, last == offer.n_blocks
        return Choice(n, can and bool(under[n] <= apart[n] * (1 + _TIE)))
    n = _least(apart[: in_time(offer, loads, most_s, overhead_s) + 1])
    wary = under if n_others else delays(offer, compute, _scaled(loads, late), overlaps=True)
    n_under = _least(wary[: min(in_time(offer, slower, most_s), last) + 1])
    is_layered = n_under > 0 and bool(under[n_under] <= apart[n] * (1 + _TIE))
    return Choice(n_under, is_layered=True) if is_layered else Choice(n)


def n_leaving(offer: Offer) -> int:
    """How many of the blocks can be loaded so that a token is left to compute."""
    return min(offer.n_blocks, max((offer.n_tokens - 1) // offer.block_tokens - offer.start, 0))


def _scaled(loads: Mapping[str, LoadCost], factor: float) -> dict[str, LoadCost]:
    return {tier: cost.scaled(factor) for tier, cost in loads.items()}


def _least(seconds: Floats) -> int:
    """Where they are least; the last of those that are as good."""
    return int(np.flatnonzero(seconds <= seconds.min() * (1 + _TIE))[-1])


def in_time(offer: Offer, loads: Mapping[str, LoadCost], most_s: float, overhead_s: float = 0.0) -> int:
    """How many blocks are loaded within `most_s`."""
    return int(np.searchsorted(load_seconds(offer, loads, overhead_s), most_s, side="right")) - 1
