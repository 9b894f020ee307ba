"""Whether a hit is worth its load: rates learnt from steps and loads, and the decision for each request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from tenuto.connectors.session.onboarding import Situation
from tenuto.connectors.session.setup import Setup
from tenuto.manager import ComputeCost, LoadCost, LoadRates, Offer, StepRates, choose, in_time
from tenuto.metrics import LOAD_RATE, PREFILL_RATE, Recorder, series

MARGIN = 1.1
"""A tier that was refused must be so many times better than computing to be loaded from again."""
HALF_LIFE_S = 60.0
"""What a tier costs counts half as much when nothing was loaded from it for so long: no tier is refused for ever."""
TRIAL_GAP_S = 10.0
"""At least between two loads that are tried though they seem to lose. A tier of which one load is known, which may have
met a stall, is tried again after so long, whatever that load took.
"""
_SHARE_OF_DEADLINE = 0.5
"""That a load may be expected to take, with those before it: one that is given up was waited for in vain."""
_ONE_DISK = ("disk", "peer")
"""Tiers whose loads wait for each other."""
_MAX_STEPS = 8
"""Steps on their way whose ends are waited for: more are never in flight."""
_N_WAITS, _LEAST_WAITS = 16, 3
_REFIT_S = 0.25
_SHOW_S = 5.0
"""What nobody asks for is fitted so often, for the metrics: it takes most of a millisecond."""


Queued = Mapping[str, tuple[int, int]]
"""Loads on their way, by the tier that they read: how many, and of how many blocks."""


class _How(TypedDict):
    n_others: int
    overlaps: bool


@dataclass(slots=True)
class _Tier:
    rates: LoadRates
    cost: LoadCost | None = None
    used_at: float = 0.0
    n_loads: int = 0
    is_refused: bool = False

    def fading(self, now: float) -> float:
        """What its cost counts, after so long without a load, in choosing a trial."""
        age_s = now - self.used_at
        return 0.0 if self.n_loads == 1 and age_s >= TRIAL_GAP_S else _fading(age_s)


class CostGate:
    """Learns on the scheduler's thread, for some microseconds in a step that computes a prompt."""

    def __init__(self, setup: Setup, recorder: Recorder, clock: Callable[[], float]) -> None:
        self._setup = setup
        self._clock = clock
        self._block_bytes = setup.layout.extent_bytes * setup.world_size
        self._most_s = _SHARE_OF_DEADLINE * setup.config.runtime.load_timeout_s
        self._steps: dict[int, tuple[float, int, int]] = {}  # by number: (planned at, tokens, pairs)
        self._n_steps = 0
        self._ended_at = 0.0
        self._refit_at = 0.0
        self._step_rates = StepRates(setup.max_step_tokens)
        self._compute: ComputeCost | None = None
        self._tiers: dict[str, _Tier] = {}
        self._waits: deque[float] = deque(maxlen=_N_WAITS)
        self._try_at = 0.0
        recorder.watch(self._gauges)

    # -- learning -----------------------------------------------------------------------------------

    def step_planned(self, n_tokens: int, n_prefill: int, n_pairs: int) -> int:
        """A step computes `n_tokens` tokens, `n_prefill` of them of prompts, which attend to `n_pairs` in all.

        The number that `step_told` is to be called with; 0 where there is nothing to learn.
        """
        if 2 * n_prefill <= n_tokens:
            return 0
        self._n_steps += 1
        self._steps[self._n_steps] = self._clock(), n_tokens, n_pairs
        self._steps.pop(self._n_steps - _MAX_STEPS, None)
        return self._n_steps

    def step_told(self, number: int) -> None:
        """The result of this step has come; those of steps before it that have not are lost."""
        step = self._steps.get(number)
        if step is None:
            return
        self._steps = {later: step for later, step in self._steps.items() if later > number}
        planned_at, n_tokens, n_pairs = step
        now = self._clock()
        began = max(planned_at, self._ended_at)  # a step runs when the one before has ended
        self.step_ended()
        self._step_rates.add(n_tokens, n_pairs, now - began)
        if self._compute is None or now >= self._refit_at + _SHOW_S:
            self._refit(now)

    def step_ended(self) -> None:
        """The result of a step has come, whichever it was."""
        self._ended_at = self._clock()

    def loaded(self, tier: str, n_blocks: int, seconds: float) -> None:
        """Consecutive blocks have come from a tier, in a time that leaves out what they waited for."""
        known = self._tiers.get(tier)
        if known is None:
            known = self._tiers[tier] = _Tier(LoadRates())
        known.rates.add(n_blocks * self._block_bytes, seconds, is_trial=known.is_refused)
        known.cost = known.rates.cost()
        known.used_at = self._clock()
        known.n_loads += 1

    def waited(self, seconds: float) -> None:
        """A load took so much longer than its transfers."""
        self._waits.append(max(seconds, 0.0))

    # -- deciding -----------------------------------------------------------------------------------

    def choose(self, situation: Situation, queued: Queued, *, overlaps: bool = False) -> int:
        """How many blocks of a hit to load.

        While a rate that matters is unknown, all of them that can come in time, so that it gets known. `queued`: what
        is being loaded. `overlaps`: the first step computes while this is loaded.
        """
        hit, n_have, n_tokens = situation.hit, situation.n_have, situation.n_tokens
        if not self._setup.config.runtime.cost_gate:
            return hit.n_blocks
        now = self._clock()
        if now >= self._refit_at:
            self._refit(now)
        layout = self._setup.layout
        pieces = tuple((span.place, len(span.keys)) for span in hit.spans)
        offer = Offer(pieces, hit.start, n_have, n_tokens, layout.block_tokens, self._block_bytes)
        wait_s = 0.0 if overlaps else self._wait_s()
        how: _How = {"n_others": situation.n_others, "overlaps": overlaps}
        n = self._best(offer, self._costs(queued), wait_s, how)
        self._remember(pieces, n, queued)
        if n < hit.n_blocks and now >= self._try_at:
            age_s = min((now - tier.used_at for tier in self._tiers.values()), default=0.0)
            faded = self._best(offer, self._costs(queued, now), wait_s * _fading(age_s), how)
            if faded > n:
                self._try_at = now + TRIAL_GAP_S
                return faded
        return n

    def _best(self, offer: Offer, costs: Mapping[str, LoadCost], wait_s: float, how: _How) -> int:
        if self._compute is None or not self._step_rates.covers(offer.n_tokens - offer.n_have):
            return in_time(offer, costs, self._most_s, wait_s)
        return choose(offer, self._compute, costs, overhead_s=wait_s, most_s=self._most_s, **how)

    def _costs(self, queued: Queued, now: float | None = None) -> dict[str, LoadCost]:
        """By tier, behind what is queued; `now`: what was not used for long has become cheaper."""
        costs: dict[str, LoadCost] = {}
        for name, tier in self._tiers.items():
            if tier.cost is not None:
                factor = 1.0 if now is None else tier.fading(now)
                cost = tier.cost.scaled(factor * (MARGIN if tier.is_refused else 1.0))
                before = _ONE_DISK if name in _ONE_DISK else (name,)
                costs[name] = cost.behind(sum(self._queue_s(other, queued) for other in before))
        return costs

    def _queue_s(self, name: str, queued: Queued) -> float:
        """What the loads of a tier that are on their way take."""
        n_loads, n_blocks = queued.get(name, (0, 0))
        tier = self._tiers.get(name)
        return tier.cost.seconds(n_loads, n_blocks * self._block_bytes) if tier and tier.cost else 0.0

    def _remember(self, pieces: tuple[tuple[str, int], ...], n_loaded: int, queued: Queued) -> None:
        """Of the tiers that had something, which are loaded from and which are refused, though nothing was queued."""
        used: set[str] = set()
        for name, n_blocks in pieces:
            if n_loaded > 0:
                used.add(name)
            n_loaded -= n_blocks
        for name, _ in pieces:
            if name in self._tiers and (name in used or name not in queued):
                self._tiers[name].is_refused = name not in used

    def _wait_s(self) -> float:
        """What a load waits for beside its transfers, when there is little else to do: the lower quartile.

        Nothing while few are known: each may have met a stall.
        """
        return sorted(self._waits)[len(self._waits) // 4] if len(self._waits) >= _LEAST_WAITS else 0.0

    def _refit(self, now: float) -> None:
        self._compute = self._step_rates.cost()
        self._refit_at = now + _REFIT_S

    def _gauges(self) -> dict[str, float]:
        """Any thread: what it reads is replaced whole."""
        values = {
            series(LOAD_RATE, name): 1 / tier.cost.byte_s
            for name, tier in list(self._tiers.items())
            if tier.cost is not None and tier.cost.byte_s > 0
        }
        compute = self._compute
        if compute is not None:
            values[series(PREFILL_RATE)] = compute.tokens_per_second()
        return values


def _fading(age_s: float) -> float:
    return 0.5 ** (max(age_s, 0.0) / HALF_LIFE_S)
