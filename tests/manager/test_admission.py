"""What is written to disk, and what is not worth it."""

import pytest

from tenuto.errors import ConfigError
from tenuto.manager import make_admission
from tenuto.testing.blocks import make_keys

pytestmark = pytest.mark.unit

KEYS = make_keys(5)


def test_all_admits_whatever_comes():
    assert make_admission("all", "x").admit(KEYS, is_free=False).all()


def test_frequency_admits_what_was_seen_before():
    admission = make_admission("frequency", "x")
    assert not admission.admit(KEYS, is_free=True).any()
    assert admission.admit(KEYS[:2], is_free=False).all()
    assert admission.admit([*KEYS[:1], *make_keys(1, seed=7)], is_free=False).tolist() == [True, False]


def test_its_threshold_can_be_moved_while_it_runs():
    admission = make_admission("frequency", "x")
    admission.least = 1
    assert admission.admit(KEYS, is_free=False).all()
    admission.least = 3
    assert not admission.admit(KEYS, is_free=False).any()


def test_counts_fade():
    from tenuto.manager.admission import AdmitFrequent

    admission = AdmitFrequent(least=2, n_aging=64)
    admission.admit(KEYS, is_free=False)
    for seed in range(1, 20):
        admission.admit(make_keys(5, seed=seed), is_free=False)
    assert not admission.admit(KEYS[:1], is_free=False).any()


def test_the_default_writes_all_while_there_is_room_and_then_what_was_seen_before():
    admission = make_admission("default", "x")
    assert admission.admit(KEYS, is_free=True).all()
    fresh = make_keys(3, seed=3)
    assert not admission.admit(fresh, is_free=False).any()
    assert admission.admit([*KEYS, *fresh], is_free=False).all()


def test_an_unknown_name_is_said_with_the_choices():
    with pytest.raises(ConfigError, match=r"tiers\.disk\.admission: no admission is named 'no'; give one of"):
        make_admission("no", "tiers.disk.admission")
