"""The cost gate's arithmetic, against one written the slow way."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.manager.gate import (
    Choice,
    ComputeCost,
    LoadCost,
    Offer,
    choose,
    choose_form,
    delays,
    in_time,
    load_seconds,
    n_leaving,
    n_pairs,
    seconds_to_first_token,
)

pytestmark = pytest.mark.unit

TIERS = ("host", "disk", "peer")
CLOSE = 1 + 1e-6

seconds = st.floats(0, 1e-2)
computes = st.builds(
    ComputeCost, step_s=seconds, token_s=st.floats(1e-6, 1e-3), pair_s=st.floats(0, 1e-7),
    step_tokens=st.sampled_from([0, 16, 100, 8192]),
)  # fmt: skip
costs = st.builds(LoadCost, fixed_s=seconds, byte_s=st.floats(0, 1e-5))
loads = st.dictionaries(st.sampled_from(TIERS), costs)


@st.composite
def offers(draw) -> Offer:
    block_tokens = draw(st.sampled_from([8, 64]))
    start = draw(st.integers(0, 3))
    pieces = draw(st.lists(st.tuples(st.sampled_from(TIERS), st.integers(1, 12)), min_size=1, max_size=4))
    n_have = start * block_tokens + draw(st.integers(0, block_tokens - 1))
    least = (start + sum(n for _, n in pieces)) * block_tokens
    return Offer(tuple(pieces), start, n_have, least + draw(st.integers(0, 200)), block_tokens, 1000)


def computed(cost: ComputeCost, start: int, stop: int) -> float:
    """Token by token."""
    if start == stop:
        return 0.0
    n_steps = math.ceil((stop - start) / cost.step_tokens) if cost.step_tokens else 1
    return n_steps * cost.step_s + sum(cost.token_s + (at + 1) * cost.pair_s for at in range(start, stop))


def loaded(offer: Offer, costs: dict[str, LoadCost], n_blocks: int, overhead_s: float) -> float:
    total = overhead_s if n_blocks else 0.0
    for tier, n in offer.pieces:
        taken = min(n, n_blocks)
        n_blocks -= taken
        if taken and tier in costs:
            total += costs[tier].fixed_s + taken * offer.block_bytes * costs[tier].byte_s
    return total


def slowly(offer, compute, costs, overhead_s, *, overlaps):
    """Seconds to the first token for every number of blocks."""
    answers = []
    for n in range(offer.n_blocks + 1):
        begin = min(max((offer.start + n) * offer.block_tokens, offer.n_have), offer.n_tokens - 1)
        load = loaded(offer, costs, n, overhead_s)
        if overlaps:
            between = min(begin + (compute.step_tokens or offer.n_tokens), offer.n_tokens)
            first = max(load, computed(compute, begin, between))
            answers.append(first + computed(compute, between, offer.n_tokens))
        else:
            answers.append(load + computed(compute, begin, offer.n_tokens))
    return answers


@given(offers(), computes, loads, seconds, st.booleans())
def test_nothing_is_sooner_than_what_is_chosen(offer, compute, costs, overhead_s, overlaps):
    expected = slowly(offer, compute, costs, overhead_s, overlaps=overlaps)
    found = seconds_to_first_token(offer, compute, costs, overhead_s=overhead_s, overlaps=overlaps)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    n = choose(offer, compute, costs, overhead_s=overhead_s, overlaps=overlaps)
    assert expected[n] <= min(expected) * CLOSE


@given(offers(), computes, loads, seconds, st.booleans())
def test_a_load_never_takes_longer_than_computing(offer, compute, costs, overhead_s, overlaps):
    n = choose(offer, compute, costs, overhead_s=overhead_s, overlaps=overlaps)
    taken = slowly(offer, compute, costs, overhead_s, overlaps=overlaps)
    assert taken[n] <= taken[0] * CLOSE


@given(offers(), computes, loads, st.sampled_from(TIERS), st.floats(1.01, 100), seconds)
def test_a_faster_tier_is_never_loaded_less_of(offer, compute, costs, tier, times, overhead_s):
    costs = {tier: LoadCost(1e-4, 1e-7)} | costs
    faster = costs | {tier: costs[tier].scaled(1 / times)}
    n = choose(offer, compute, costs, overhead_s=overhead_s)
    n_faster = choose(offer, compute, faster, overhead_s=overhead_s)
    if n_faster < n:  # only where both are as good as each other, but for rounding
        taken = slowly(offer, compute, faster, overhead_s, overlaps=False)
        assert taken[n] == pytest.approx(taken[n_faster], rel=1e-7)


@given(offers(), computes, loads, st.floats(1, 100), seconds)
def test_a_slower_engine_never_makes_less_worth_loading(offer, compute, costs, times, overhead_s):
    slower = ComputeCost(compute.step_s * times, compute.token_s * times, compute.pair_s * times, compute.step_tokens)
    n = choose(offer, compute, costs, overhead_s=overhead_s)
    n_slower = choose(offer, slower, costs, overhead_s=overhead_s)
    if n_slower < n:
        taken = slowly(offer, slower, costs, overhead_s, overlaps=False)
        assert taken[n] == pytest.approx(taken[n_slower], rel=1e-7)


@given(offers(), computes, loads, seconds)
def test_loads_under_computing_are_never_later_than_loads_before_it(offer, compute, costs, overhead_s):
    apart = seconds_to_first_token(offer, compute, costs, overhead_s=overhead_s)
    together = seconds_to_first_token(offer, compute, costs, overhead_s=overhead_s, overlaps=True)
    assert (together <= apart * CLOSE + compute.step_s).all()  # the first step may be split off from the rest


@given(offers(), computes)
def test_what_costs_nothing_is_loaded_whole(offer, compute):
    assert choose(offer, compute, {}) == offer.n_blocks


PER_TOKEN = ComputeCost(0.0, 1e-3)


def offer_of(*pieces, n_tokens, start=0, n_have=0):
    return Offer(pieces, start, n_have, n_tokens, 10, 100)


def test_a_disk_slower_than_computing_is_left_alone_and_host_memory_is_not():
    costs = {"host": LoadCost(0, 1e-6), "disk": LoadCost(0, 3e-4)}  # 0.1 ms, 30 ms a block; computing takes 10 ms
    assert choose(offer_of(("disk", 8), n_tokens=100), PER_TOKEN, costs) == 0
    assert choose(offer_of(("host", 5), ("disk", 3), n_tokens=100), PER_TOKEN, costs) == 5


def test_behind_a_little_slow_there_may_be_much_fast():
    costs = {"host": LoadCost(0, 1e-6), "disk": LoadCost(0, 3e-4)}
    assert choose(offer_of(("disk", 1), ("host", 5), n_tokens=100), PER_TOKEN, costs) == 6
    assert choose(offer_of(("disk", 4), ("host", 5), n_tokens=100), PER_TOKEN, costs) == 0


def test_the_last_blocks_of_a_hit_are_computed_when_their_step_is_run_anyway():
    by_steps = ComputeCost(step_s=1.0, token_s=0.0, step_tokens=50)
    costs = {"disk": LoadCost(0, 1e-4)}
    assert choose(offer_of(("disk", 9), n_tokens=100), by_steps, costs) == 5  # 50 tokens are left: one step


def test_later_tokens_attend_to_more_so_their_load_pays_sooner():
    attending = ComputeCost(0.0, 1e-3, pair_s=1e-5)
    costs = {"disk": LoadCost(0, 1.2e-4)}  # 12 ms a block; its 10 tokens take 10 ms, and more the later they are
    assert choose(offer_of(("disk", 2), n_tokens=25), attending, costs) == 0
    assert choose(offer_of(("disk", 90), n_tokens=905), attending, costs) == 90


def test_a_load_is_not_worth_its_overhead_for_little():
    costs = {"host": LoadCost(0, 1e-6)}
    assert choose(offer_of(("host", 2), n_tokens=30), PER_TOKEN, costs, overhead_s=0.05) == 0
    assert choose(offer_of(("host", 9), n_tokens=100), PER_TOKEN, costs, overhead_s=0.05) == 9
    assert load_seconds(offer_of(("host", 1), n_tokens=30), costs, 0.05).tolist() == pytest.approx([0, 0.0501])


@given(st.integers(0, 50), st.integers(0, 50))
def test_pairs_are_counted_as_a_causal_mask_has_them(start, n):
    assert n_pairs(start, start + n) == sum(at + 1 for at in range(start, start + n))


def test_the_rate_of_a_new_prompt_is_that_of_a_full_step():
    assert ComputeCost(0.1, 1e-3, 0.0, step_tokens=900).tokens_per_second() == pytest.approx(900)
    assert PER_TOKEN.tokens_per_second() == pytest.approx(1000)


def test_what_is_computed_delays_all_that_are_there_and_what_is_loaded_only_one():
    costs = {"disk": LoadCost(0, 3e-4)}  # 30 ms a block, which takes 10 ms to compute
    offer = offer_of(("disk", 8), n_tokens=100)
    assert [choose(offer, PER_TOKEN, costs, n_others=n) for n in (0, 1, 2, 3)] == [0, 0, 8, 8]
    behind = {
        "disk": costs["disk"].behind(costs["disk"].seconds(1, 24 * offer.block_bytes))
    }  # 24 blocks more, and then these 8
    assert [choose(offer, PER_TOKEN, behind, n_others=n) for n in (2, 8, 11, 12)] == [0, 0, 8, 8]


@given(offers(), computes, loads, seconds, st.sampled_from([0.0, 1e-6, 1e-4, 1e-2, 1.0]), st.integers(0, 9))
def test_nothing_is_loaded_that_takes_too_long(offer, compute, costs, overhead_s, most_s, n_others):
    n = choose(offer, compute, costs, overhead_s=overhead_s, n_others=n_others, most_s=most_s)
    most = in_time(offer, costs, most_s, overhead_s)
    assert n <= most
    assert loaded(offer, costs, most, overhead_s) <= most_s * CLOSE
    assert most == offer.n_blocks or loaded(offer, costs, most + 1, overhead_s) * CLOSE > most_s
    free = choose(offer, compute, costs, overhead_s=overhead_s, n_others=n_others)
    assert n == free or free > most


@given(offers(), computes, loads, st.integers(0, 9))
def test_the_more_others_there_are_the_more_is_loaded(offer, compute, loads, n_others):
    n = choose(offer, compute, loads, n_others=n_others)
    assert choose(offer, compute, loads, n_others=n_others + 1) >= n


def form_delays(offer, compute, costs, overhead_s, n_others, margin):
    """Written the slow way: what each number of blocks delays all together, before the forward and under it."""
    apart, under = [], []
    slower = {tier: cost.scaled(margin if n_others else 1.0) for tier, cost in costs.items()}
    for n in range(offer.n_blocks + 1):
        begin = min(max((offer.start + n) * offer.block_tokens, offer.n_have), offer.n_tokens - 1)
        between = min(begin + (compute.step_tokens or offer.n_tokens), offer.n_tokens)
        first, rest = computed(compute, begin, between), computed(compute, between, offer.n_tokens)
        apart.append(loaded(offer, costs, n, overhead_s) + (n_others + 1) * (first + rest))
        under.append((n_others + 1) * (max(loaded(offer, slower, n, 0.0), first) + rest))
    return apart, under


margins = st.floats(1.0, 2.0)
others = st.integers(0, 9)


@given(offers(), computes, loads, seconds, others, margins, st.integers(0, 60))
def test_of_both_forms_nothing_delays_all_less_than_what_is_chosen(
    offer, compute, costs, overhead_s, n_others, margin, n_layerable
):
    apart, under = form_delays(offer, compute, costs, overhead_s, n_others, margin)
    chosen = choose_form(
        offer, compute, costs, n_layerable=n_layerable, overhead_s=overhead_s, n_others=n_others, margin=margin
    )
    may = min(n_layerable, n_leaving(offer))
    taken = under[chosen.n_blocks] if chosen.is_layered else apart[chosen.n_blocks]
    assert taken <= min([*apart, *under[: may + 1]]) * CLOSE
    if chosen.is_layered:
        assert 0 < chosen.n_blocks <= may
        assert (offer.start + chosen.n_blocks) * offer.block_tokens < offer.n_tokens  # a token is left


@given(offers(), computes, loads, margins, st.integers(0, 60))
def test_alone_the_length_of_a_load_under_the_forward_is_that_of_a_slower_one(offer, compute, costs, late, n_layerable):
    chosen = choose_form(offer, compute, costs, n_layerable=n_layerable, late=late)
    may = min(n_layerable, n_leaving(offer))
    if chosen.is_layered:
        slower = {tier: cost.scaled(late) for tier, cost in costs.items()}
        _, under = form_delays(offer, compute, slower, 0.0, 0, 1.0)
        assert under[chosen.n_blocks] <= min(under[: may + 1]) * CLOSE
        forced = choose(offer, compute, costs, overlaps=True, late=late)
        assert forced == chosen.n_blocks or may < offer.n_blocks


@given(offers(), computes, loads, seconds, others, margins, st.integers(0, 60))
def test_the_form_of_a_whole_load_is_that_which_delays_all_less(
    offer, compute, costs, overhead_s, n_others, margin, n_layerable
):
    apart, under = form_delays(offer, compute, costs, overhead_s, n_others, margin)
    chosen = choose_form(
        offer, compute, costs, n_layerable=n_layerable, overhead_s=overhead_s, n_others=n_others, margin=margin,
        is_whole=True,
    )  # fmt: skip
    assert chosen.n_blocks == offer.n_blocks
    if offer.n_blocks > min(n_layerable, n_leaving(offer)):
        assert not chosen.is_layered
    else:
        better, worse = (under, apart) if chosen.is_layered else (apart, under)
        assert better[-1] <= worse[-1] * CLOSE


@given(offers(), computes, loads, seconds, st.sampled_from([0.0, 1e-4, 1e-2, 1.0]), others, margins)
def test_neither_form_loads_what_takes_too_long(offer, compute, costs, overhead_s, most_s, n_others, margin):
    chosen = choose_form(
        offer, compute, costs, n_layerable=offer.n_blocks, overhead_s=overhead_s, n_others=n_others, most_s=most_s,
        margin=margin,
    )  # fmt: skip
    scale = margin if chosen.is_layered and n_others else 1.0
    slower = {tier: cost.scaled(scale) for tier, cost in costs.items()}
    taken = loaded(offer, slower, chosen.n_blocks, 0.0 if chosen.is_layered else overhead_s)
    assert taken <= most_s * CLOSE


@given(offers(), computes, loads, seconds)
def test_who_is_alone_is_loaded_by_layers_whatever_is_loaded_while_a_token_is_left(offer, compute, costs, overhead_s):
    chosen = choose_form(offer, compute, costs, n_layerable=offer.n_blocks, overhead_s=overhead_s)
    assert chosen.is_layered or chosen.n_blocks == 0 or chosen.n_blocks > n_leaving(offer)


@given(offers(), computes, loads, others, margins)
def test_a_load_that_is_hidden_is_by_layers_however_many_would_wait(offer, compute, costs, n_others, margin):
    """And one that would stall others for longer than it takes by itself is not."""
    chosen = choose_form(
        offer, compute, costs, n_layerable=offer.n_blocks, n_others=n_others, margin=margin, is_whole=True
    )
    if offer.n_blocks > n_leaving(offer):
        return
    begin = offer.places()[-1:]
    first = float(compute.seconds(begin, begin + min(compute.step_tokens or offer.n_tokens, offer.n_tokens - begin[0])))
    load = loaded(offer, costs, offer.n_blocks, 0.0)
    late = load * (margin if n_others else 1.0) - first
    if late < 0:
        assert chosen.is_layered
    elif (n_others + 1) * late > load * CLOSE + 1e-9 * (n_others + 1) * first:
        assert not chosen.is_layered or n_others == 0


@given(offers(), computes, loads, seconds, others)
def test_delays_of_both_forms_are_those_of_all_requests(offer, compute, costs, overhead_s, n_others):
    apart, under = form_delays(offer, compute, costs, overhead_s, n_others, 1.0)
    found = delays(offer, compute, costs, overhead_s=overhead_s, n_others=n_others)
    assert found.tolist() == pytest.approx(apart, rel=1e-9)
    assert delays(offer, compute, costs, overlaps=True, n_others=n_others).tolist() == pytest.approx(under, rel=1e-9)


def test_beside_others_a_load_is_by_layers_when_it_hides_under_what_is_left_to_compute():
    costs = {"disk": LoadCost(0, 1e-5)}  # 1 ms a block, which takes 10 ms to compute
    much_left = offer_of(("disk", 8), n_tokens=100)  # 20 tokens: 20 ms hide 8 ms
    little_left = offer_of(("disk", 8), n_tokens=81)  # one token: 1 ms hides little of 8 ms
    for n_others, form in ((0, True), (1, False), (5, False)):
        assert choose_form(much_left, PER_TOKEN, costs, n_layerable=8, n_others=n_others) == Choice(8, True)
        assert choose_form(little_left, PER_TOKEN, costs, n_layerable=8, n_others=n_others) == Choice(8, form)
    assert choose_form(much_left, PER_TOKEN, costs, n_layerable=0, n_others=5) == Choice(8)
    assert choose_form(much_left, PER_TOKEN, costs, n_layerable=8, n_others=5, margin=2.4) == Choice(8, True)
    assert choose_form(much_left, PER_TOKEN, costs, n_layerable=8, n_others=5, margin=3.0).is_layered is False


def test_a_whole_hit_is_loaded_before_the_forward_unless_computing_its_last_blocks_hides_some_of_it():
    whole = offer_of(("disk", 8), n_tokens=80)
    assert n_leaving(whole) == 7
    fast, slow = {"disk": LoadCost(0, 1e-6)}, {"disk": LoadCost(0, 5e-5)}  # 0.1 ms a block, 5 ms a block
    assert choose_form(whole, PER_TOKEN, fast, n_layerable=8) == Choice(8)  # the last token alone is computed
    assert choose_form(whole, PER_TOKEN, slow, n_layerable=8) == Choice(6, True)  # 30 ms hide 20; 40 + 1 before
