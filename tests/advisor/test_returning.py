"""What is learnt of returns, and how long a plan takes with many blocks."""

import time

import numpy as np
import pytest

from tests.advisor.advisor_rig import NAME, Rig, chain

pytestmark = pytest.mark.unit


def test_sessions_that_go_on_are_worth_more_than_prompts_that_are_asked_once():
    rig = Rig(n_home=100_000)
    for number in range(700):
        turn = chain(4, seed=2 * number)
        rig.request(turn)
        rig.now_s += 20.0
        rig.request(chain(2, seed=2 * number + 1, above=turn[:3]))  # each comes back, and none a third time
    table, model = rig.index.table, rig.index.model
    fresh, done = chain(4, seed=10_000), chain(2, seed=2 * 699 + 1, above=chain(4, seed=2 * 699)[:3])
    rig.request(fresh)
    scores = model.scores(table, np.asarray(table.known([fresh[0].hash, done[0].hash])), rig.now_s)
    assert scores[0] > 2 * scores[1]


def test_blocks_are_worth_less_the_longer_nobody_asked():
    rig = Rig(n_home=100_000)
    for number in range(600):
        rig.request(chain(3, seed=number % 300))
        rig.now_s += 1.0
    table = rig.index.table
    rows = np.asarray(table.known([chain(3, seed=7)[0].hash]))
    late = [float(rig.index.model.scores(table, rows, rig.now_s + after_s)[0]) for after_s in (2000, 8000, 32000)]
    assert late == sorted(late, reverse=True)


@pytest.mark.scale
def test_a_plan_with_200_000_blocks_takes_little():
    rig = Rig(n_fast=20_000, n_home=400_000)
    for number in range(2000):
        rig.request(chain(100, seed=number))
        rig.now_s += 1.0
        if number % 100 == 0:
            rig.carry_out(rig.plan())
    seconds = []
    for number in range(20):
        rig.request(chain(100, seed=number))
        info = rig.agent.describe()
        began = time.perf_counter()
        rig.advisor.plan(NAME, info.volumes, info.extent_bytes, rig.now_s)
        seconds.append(time.perf_counter() - began)
    assert len(rig.index.table) == 200_000
    assert sorted(seconds)[10] < 0.1
