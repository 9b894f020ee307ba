"""The cost gate in a real engine: what a slow disk has is computed, and the answer is the same."""

import pytest

from tenuto.testing.files import make_faulty
from tests.engine.tiny import prompt

pytestmark = pytest.mark.engine

TOKENS = prompt(60, 500)  # 7 blocks of 64
HIT = 7 * 64


def ask_disk(engine):
    """Ask when the blocks are on disk alone."""
    engine.settle()
    engine.leader.manager.host.reset()
    engine.forget()
    return engine.ask(TOKENS)


def test_what_a_slow_disk_has_is_computed_until_the_disk_is_tried_again(start):
    engine = start({"runtime": {"cost_gate": True}})
    expected = engine.ask(TOKENS)[1]
    engine.settle()
    store = engine.worker._store
    files = make_faulty(store)
    files.read_s = 1.0  # computing takes less than a tenth of that
    assert ask_disk(engine) == (HIT, expected)  # nothing is known of the disk
    disk = engine.leader.gate._tiers["disk"]
    disk.used_at -= 3600
    assert ask_disk(engine) == (HIT, expected)  # it may have been a stall
    assert disk.n_loads == 2
    assert [ask_disk(engine) for _ in range(3)] == [(0, expected)] * 3
    figures = engine.settle()
    assert figures["tokens.gated.disk"] == 3 * HIT
    assert figures["tokens.found.disk"] == figures["tokens.loaded.disk"] == 2 * HIT
    assert 0 < figures["rate.load.disk"] < 2 * figures["bytes.disk_to_host"]
    assert figures["rate.prefill"] > HIT / 0.9
    files.read_s = 0.0
    disk.used_at -= 3600
    engine.leader.gate._try_at = 0.0
    assert ask_disk(engine) == (HIT, expected)
    assert disk.cost.byte_s < 0.5 / figures["bytes.disk_to_host"]


def test_every_step_of_a_prompt_is_told_of(start):
    engine = start({"runtime": {"cost_gate": True}})
    for seed in range(3):
        engine.ask(prompt(seed, 300))
        engine.settle()
    assert engine.leader.gate._n_steps >= 3
    assert not engine.leader.gate._steps
