"""What is written to disk, and what is not worth it."""

import pytest

from tenuto.errors import ConfigError
from tenuto.manager import make_admission
from tenuto.testing.blocks import make_keys

pytestmark = pytest.mark.unit

KEYS = make_keys(5)


def test_all_admits_whatever_comes():
    assert make_admission("all", "x").admit(KEYS, n_free=0).all()


def test_frequency_admits_what_was_seen_before():
    admission = make_admission("frequency", "x")
    assert not admission.admit(KEYS, n_free=5).any()
    assert admission.admit(KEYS[:2], n_free=0).all()
    assert admission.admit([*KEYS[:1], *make_keys(1, seed=7)], n_free=0).tolist() == [True, False]


def test_its_threshold_can_be_moved_while_it_runs():
    admission = make_admission("frequency", "x")
    admission.least = 1
    assert admission.admit(KEYS, n_free=0).all()
    admission.least = 3
    assert not admission.admit(KEYS, n_free=0).any()


def test_counts_fade():
    from tenuto.manager.admission import AdmitFrequent

    admission = AdmitFrequent(least=2, n_aging=64)
    admission.admit(KEYS, n_free=0)
    for seed in range(1, 20):
        admission.admit(make_keys(5, seed=seed), n_free=0)
    assert not admission.admit(KEYS[:1], n_free=0).any()


def test_the_default_writes_all_while_there_is_room_and_then_what_was_seen_before():
    admission = make_admission("default", "x")
    assert admission.admit(KEYS, n_free=5).all()
    fresh = make_keys(3, seed=3)
    assert not admission.admit(fresh, n_free=0).any()
    assert admission.admit([*KEYS, *fresh], n_free=0).all()


def test_the_default_fills_the_room_that_is_left_whatever_comes():
    admission = make_admission("default", "x")
    assert admission.admit(KEYS, n_free=3).tolist() == [True] * 3 + [False] * 2
    assert not make_admission("frequency", "x").admit(KEYS, n_free=3).any()


def prompts(numbers):
    """Chains of four blocks, one after the other."""
    return [make_keys(4, seed=100 + number) for number in numbers]


def test_the_default_writes_new_blocks_to_a_full_disk_while_most_of_them_return():
    admission = make_admission("default", "x")
    for prompt in prompts(range(3000)):  # each comes twice
        admission.admit(prompt, n_free=0)
        admission.admit(prompt, n_free=0)
    n_written = sum(admission.admit(prompt, n_free=0).sum() for prompt in prompts(range(3000, 4000)))
    assert n_written > 0.9 * 4000
    for prompt in prompts(range(4000, 9000)):  # none of these comes again
        admission.admit(prompt, n_free=0)
    assert not any(admission.admit(prompt, n_free=0).any() for prompt in prompts(range(9000, 9500)))


def test_the_default_writes_no_new_blocks_to_a_full_disk_where_one_in_four_returns():
    admission = make_admission("default", "x")
    n_written = 0
    for number, prompt in enumerate(prompts(range(4000))):
        n_written += admission.admit(prompt, n_free=0).sum()
        if number % 4 == 0:
            assert admission.admit(prompt, n_free=0).all()
    assert n_written == 0


def test_an_unknown_name_is_said_with_the_choices():
    with pytest.raises(ConfigError, match=r"tiers\.disk\.admission: no admission is named 'no'; give one of"):
        make_admission("no", "tiers.disk.admission")
