"""Whether a hit is worth its load: rates learnt from steps and loads, and the decision for each request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tenuto.connectors.session.onboarding import Situation, n_layerable
from tenuto.connectors.session.setup import Setup
from tenuto.manager import Choice, ComputeCost, LoadCost, LoadRates, Offer, StepRates, choose, choose_form, in_time
from tenuto.metrics import LOAD_RATE, PREFILL_RATE, Recorder, series

MARGIN = 1.1
"""A tier that was refused must be so many times better than computing to be loaded from again, and so must loads by
layers be beside others, after one that was not.
"""
STALL_MARGIN = 1.25
"""A load that others would wait for is taken to last so many times as long as it is expected to."""
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
_MOST_WAITING = 0.1
"""Of a step, for layers, that leaves a measure of its computing."""
_MAX_STEPS = 8
"""Steps on their way whose ends are waited for: more are never in flight."""
_N_WAITS, _LEAST_WAITS = 16, 3
_REFIT_S = 0.25
_SHOW_S = 5.0
"""What nobody asks for is fitted so often, for the metrics: it takes most of a millisecond."""


Queued = Mapping[str, tuple[int, int]]
"""Loads on their way, by the tier that they read: how many, and of how many blocks."""


@dataclass(frozen=True, slots=True)
class _Case:
    """What is known of one hit. `wait_s`: of a load before the forward, beside its transfers."""

    offer: Offer
    n_others: int
    n_layerable: int
    wait_s: float


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
        self._runtime = setup.config.runtime
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
        self._was_layered = False
        """The last load that "auto" chose beside others."""
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

    def step_told(self, number: int, waited_s: float = 0.0) -> None:
        """The result of this step has come; those of steps before it that have not are lost.

        It has waited so long for layers to be loaded: one that has done little else says nothing of computing.
        """
        step = self._steps.get(number)
        if step is None:
            return
        self._steps = {later: step for later, step in self._steps.items() if later > number}
        planned_at, n_tokens, n_pairs = step
        now = self._clock()
        began = max(planned_at, self._ended_at)  # a step runs when the one before has ended
        self.step_ended()
        if waited_s > _MOST_WAITING * (now - began):
            return
        self._step_rates.add(n_tokens, n_pairs, now - began - waited_s)
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

    def choose(self, situation: Situation, queued: Queued) -> Choice:
        """How many blocks of a hit to load, and whether layer by layer.

        While a rate that matters is unknown, all of them that can come in time, so that it gets known; by layers, with
        `onboard` "auto", for a request that is alone. `queued`: what is being loaded.
        """
        hit, now = situation.hit, self._clock()
        if now >= self._refit_at and (self._runtime.cost_gate or self._runtime.onboard == "auto"):
            self._refit(now)
        pieces = tuple((span.place, len(span.keys)) for span in hit.spans)
        offer = Offer(
            pieces, hit.start, situation.n_have, situation.n_tokens, self._setup.layout.block_tokens, self._block_bytes
        )
        case = _Case(offer, situation.n_others, n_layerable(self._setup, hit, offer), self._wait_s())
        chosen = self._best(case, self._costs(queued))
        if self._runtime.cost_gate:
            self._remember(pieces, chosen.n_blocks, queued)
            chosen = self._tried(case, chosen, queued, now)
        if self._runtime.onboard == "auto" and case.n_others and chosen.n_blocks:
            self._was_layered = chosen.is_layered
        return chosen

    def _tried(self, case: _Case, chosen: Choice, queued: Queued, now: float) -> Choice:
        """What is chosen, or more of it where a trial is due. Others don't wait for the layers of a trial."""
        if chosen.n_blocks == case.offer.n_blocks or now < self._try_at:
            return chosen
        age_s = min((now - tier.used_at for tier in self._tiers.values()), default=0.0)
        n_layerable = 0 if case.n_others and self._runtime.onboard == "auto" else case.n_layerable
        trial = replace(case, wait_s=case.wait_s * _fading(age_s), n_layerable=n_layerable)
        faded = self._best(trial, self._costs(queued, now))
        if faded.n_blocks <= chosen.n_blocks:
            return chosen
        self._try_at = now + TRIAL_GAP_S
        return faded

    def _best(self, case: _Case, costs: Mapping[str, LoadCost]) -> Choice:
        """By what is known. Without the cost gate all blocks are loaded, and only how is chosen."""
        offer, n_others, compute = case.offer, case.n_others, self._compute
        is_whole, is_auto = not self._runtime.cost_gate, self._runtime.onboard == "auto"
        is_forced = not is_auto and case.n_layerable == offer.n_blocks
        wait_s = 0.0 if is_forced else case.wait_s
        if compute is None or not self._step_rates.covers(offer.n_tokens - offer.n_have):
            n = offer.n_blocks if is_whole else in_time(offer, costs, self._most_s, wait_s)
            return Choice(n, is_forced or (is_auto and not n_others and 0 < n <= case.n_layerable))
        if not is_auto:
            n = offer.n_blocks if is_whole else choose(
                offer, compute, costs, overhead_s=wait_s, overlaps=is_forced, n_others=n_others, most_s=self._most_s
            )  # fmt: skip
            return Choice(n, is_forced)
        is_rated = all(tier in costs for tier, _ in offer.pieces)
        return choose_form(
            offer, compute, costs, n_layerable=case.n_layerable if is_rated or not n_others else 0,
            overhead_s=wait_s, n_others=n_others, most_s=self._most_s,
            margin=STALL_MARGIN * (1.0 if self._was_layered else MARGIN), is_whole=is_whole,
        )  # fmt: skip

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
