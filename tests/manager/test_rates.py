"""What is made of what steps and loads took."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.manager.gate import LoadCost, n_pairs
from tenuto.manager.rates import LoadRates, StepRates

pytestmark = pytest.mark.unit

STEP_S, TOKEN_S, PAIR_S = 0.02, 25e-6, 4e-10
CHUNK = 8192


def step_seconds(start, stop):
    return STEP_S + TOKEN_S * (stop - start) + PAIR_S * n_pairs(start, stop)


def feed(rates, start, stop, times=1.0):
    rates.add(stop - start, n_pairs(start, stop), step_seconds(start, stop) * times)


def prefill_s(cost, n_tokens):
    return float(cost.seconds(np.array([0]), np.array([n_tokens]))[0])


def true_prefill_s(n_tokens):
    return sum(step_seconds(at, min(at + CHUNK, n_tokens)) for at in range(0, n_tokens, CHUNK))


def test_before_any_step_nothing_is_known():
    assert StepRates(CHUNK).cost() is None
    assert not StepRates(CHUNK).covers(1)
    assert LoadRates().cost() is None


def test_one_step_tells_tokens_per_second_and_no_more():
    rates = StepRates(CHUNK)
    rates.add(1000, n_pairs(0, 1000), 0.5)
    cost = rates.cost()
    assert (cost.step_s, cost.pair_s) == (0, 0)
    assert cost.token_s == pytest.approx(5e-4)


@pytest.mark.parametrize("n_tokens", [500, 4096, 20000, 65536])
def test_a_few_prompts_tell_what_any_prompt_takes(n_tokens):
    rates, draw = StepRates(CHUNK), random.Random(0)
    for length in (200, 1500, 32768, 6000):
        for at in range(0, length, CHUNK):
            feed(rates, at, min(at + CHUNK, length), times=draw.uniform(0.98, 1.02))
    assert prefill_s(rates.cost(), n_tokens) == pytest.approx(true_prefill_s(n_tokens), rel=0.15)


def test_a_step_that_took_very_long_for_once_does_not_count():
    rates = StepRates(CHUNK)
    feed(rates, 0, CHUNK, times=20)  # kernels were compiled
    for at in range(0, 32768, CHUNK):
        feed(rates, at, at + CHUNK)
    assert prefill_s(rates.cost(), 32768) == pytest.approx(true_prefill_s(32768), rel=0.1)


def test_many_short_prompts_do_not_drive_out_what_a_long_one_taught():
    rates = StepRates(CHUNK)
    for at in range(0, 32768, CHUNK):
        feed(rates, at, at + CHUNK)
    for n in range(200):
        feed(rates, 0, 40 + n % 20)
    assert rates.covers(32768)
    assert prefill_s(rates.cost(), 32768) == pytest.approx(true_prefill_s(32768), rel=0.15)


def test_short_steps_do_not_speak_for_long_ones():
    rates = StepRates(CHUNK)
    feed(rates, 0, 600)
    assert rates.covers(2048)
    assert not rates.covers(2049)
    assert not rates.covers(1 << 20)
    feed(rates, 0, 2048)
    assert rates.covers(1 << 20)  # one step is never longer than 8192


def test_what_an_h200_took_is_foretold_best_by_steps_of_that_size():
    """Its clocks fall in long steps, and its first step of all did more: no line goes through all of these."""
    rates = StepRates(33024)
    took_s = {(0, 64): 0.037, (0, 8192): 0.206, (8192, 16384): 0.252, (16384, 24576): 0.312, (24576, 32769): 0.370,
              (0, 16384): 0.462, (16384, 32769): 0.681, (0, 32769): 1.165}  # fmt: skip
    for (start, stop), seconds in took_s.items():
        rates.add(stop - start, n_pairs(start, stop), seconds)
    assert prefill_s(rates.cost(32769), 32769) == pytest.approx(1.165, rel=0.04)
    assert prefill_s(rates.cost(8192), 8192) == pytest.approx(0.206, rel=0.02)
    assert prefill_s(rates.cost(64), 64) == pytest.approx(0.037, rel=0.04)
    assert rates.cost(1 << 20) == rates.cost(33024)  # no step is longer


def test_an_engine_that_has_become_slower_is_believed_after_a_few_steps():
    rates = StepRates(CHUNK)
    for _ in range(3):
        for n in (500, 2000, CHUNK):
            feed(rates, 0, n)
    before = prefill_s(rates.cost(), CHUNK)
    for _ in range(4):
        feed(rates, 0, CHUNK, times=3)
    assert prefill_s(rates.cost(), CHUNK) < 1.5 * before
    feed(rates, 0, CHUNK, times=3)
    assert prefill_s(rates.cost(), CHUNK) == pytest.approx(3 * before, rel=0.1)


def seconds_of(cost, n_bytes):
    return cost.fixed_s + n_bytes * cost.byte_s


def test_loads_of_several_sizes_tell_what_is_fixed():
    rates, true = LoadRates(), LoadCost(0.005, 1e-9)
    for n in (1 << 20, 1 << 24, 1 << 28, 1 << 30):
        rates.add(n, seconds_of(true, n))
    cost = rates.cost()
    assert cost.fixed_s == pytest.approx(true.fixed_s, rel=0.01)
    assert cost.byte_s == pytest.approx(true.byte_s, rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.floats(1e-6, 1e3)), min_size=1, max_size=40))
def test_costs_are_never_negative_and_never_nothing(seen):
    rates = LoadRates()
    for n_bytes, seconds in seen:
        rates.add(n_bytes, seconds)
    cost = rates.cost()
    assert cost.fixed_s >= 0
    assert cost.byte_s > 0 or cost.fixed_s > 0


@given(st.integers(1, 1 << 40), st.floats(1e-6, 1e3), st.integers(1, 12))
def test_loads_that_are_all_alike_are_believed(n_bytes, seconds, n):
    rates = LoadRates()
    for _ in range(n):
        rates.add(n_bytes, seconds)
    assert seconds_of(rates.cost(), n_bytes) == pytest.approx(seconds)


def test_what_took_no_time_or_brought_nothing_teaches_nothing():
    rates = LoadRates()
    rates.add(0, 1.0)
    rates.add(1000, 0.0)
    assert rates.cost() is None


def test_one_late_load_among_many_does_not_count():
    rates = LoadRates()
    for _ in range(6):
        rates.add(1000, 1.0)
    rates.add(1000, 30.0)
    assert seconds_of(rates.cost(), 1000) == pytest.approx(1.0)


def test_a_trial_outweighs_what_was_known():
    rates = LoadRates()
    for _ in range(8):
        rates.add(1000, 30.0)
    rates.cost()
    rates.add(1000, 1.0, is_trial=True)
    assert seconds_of(rates.cost(), 1000) == pytest.approx(1.0)


def test_a_trial_that_was_slower_may_have_met_a_stall_and_is_one_among_others():
    rates = LoadRates()
    for _ in range(4):
        rates.add(1000, 3.0)
    rates.cost()
    rates.add(1000, 30.0, is_trial=True)
    assert seconds_of(rates.cost(), 1000) == pytest.approx(3.0, rel=0.01)
    for _ in range(4):
        rates.add(1000, 30.0, is_trial=True)
    assert seconds_of(rates.cost(), 1000) == pytest.approx(30.0)


@given(
    st.integers(1, 64), st.lists(st.booleans(), min_size=2, max_size=8), st.floats(1e-4, 1), st.floats(2, 1e4),
)  # fmt: skip
def test_stalls_that_are_fewer_than_half_do_not_count_whenever_they_come(n_blocks, may_stall, seconds, times):
    rates, n_slow = LoadRates(), 0
    for may in may_stall:
        is_slow = may and (2 * (n_slow + 1) < len(may_stall) or len(may_stall) == 2 > 2 * n_slow)
        n_slow += is_slow
        rates.add(n_blocks << 20, seconds * (times if is_slow else 1.0))
        rates.cost()
    assert seconds_of(rates.cost(), n_blocks << 20) <= 1.5 * seconds


def test_a_trial_that_shows_the_same_adds_to_what_is_known():
    rates = LoadRates()
    for n in (1000, 4000):
        rates.add(n, 1.0 + n / 1000)
    rates.cost()
    rates.add(1000, 2.1, is_trial=True)
    assert seconds_of(rates.cost(), 4000) == pytest.approx(5.0, rel=0.1)
