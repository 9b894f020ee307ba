"""What is moved where, and how much of it at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.advisor import AdvisorSettings, Compact, Drop, Move
from tenuto.advisor.settings import CompactAt, PruneAt, Rates
from tenuto.errors import ConfigError
from tests.advisor.advisor_rig import FAST, MIB, NO_LIMITS, Rig, chain

pytestmark = pytest.mark.unit


class Nothing:
    """A rule of others."""

    def plan(self, view):
        assert view.volumes
        return []


class Idle:
    """No rule."""


def test_what_is_written_goes_to_the_fast_volume_while_it_has_room():
    rig = Rig(n_fast=10)
    keys = chain(6)
    rig.request(keys)
    (task,) = rig.tick()
    assert (task.rule, type(task.order)) == ("promote", Move)
    assert rig.where(keys) == ["fast"] * 6
    assert rig.tick() == []


def test_what_comes_back_takes_the_place_of_what_does_not():
    rig = Rig(n_fast=8, n_home=10_000)
    hot = chain(4, seed=1)
    for number in range(1200):  # as many as two fits
        rig.request(hot)
        rig.request(chain(2, seed=number + 2))
        rig.now_s += 2.0
        rig.carry_out(rig.plan())
    rig.check()
    assert rig.where(hot)[:3] == ["fast"] * 3
    assert rig.agent.describe().volumes[0].n_blocks == 8
    assert rig.agent.n_moved[""] > 0


def test_demoted_blocks_make_room_first():
    rig = Rig(n_fast=4)
    rig.request(chain(4, seed=1))
    rig.tick()
    rig.request(chain(3, seed=2))
    tasks = rig.tick(after_s=500.0)
    assert [task.rule for task in tasks] == ["demote", "promote"]
    assert [len(task.hashes) for task in tasks] == [3, 3]


def test_blocks_whose_order_is_under_way_are_left_alone_for_a_minute():
    rig = Rig(n_fast=10)
    rig.request(chain(6))
    (task,) = rig.plan()
    rig.request(chain(6))
    assert rig.plan() == []
    rig.now_s += 61.0
    rig.request(chain(6))
    assert [len(again.hashes) for again in rig.plan()] == [len(task.hashes)]


def test_what_has_no_room_waits_and_is_moved_later():
    rig = Rig(n_fast=10)
    rig.request(chain(6))
    (task,) = rig.plan()
    rig.agent._capacities["fast"] = 2  # smaller than it said
    rig.carry_out([task])
    rig.check()
    assert rig.agent.n_moved["fast"] == 2
    rig.agent._capacities["fast"] = 10
    rig.tick(after_s=3.0)
    assert rig.agent.n_moved["fast"] == 6


@pytest.mark.parametrize(
    "rates",
    [
        Rates(blocks_per_s=2.0, bytes_per_s=1 << 60, rule_blocks_per_s=1e9, rule_bytes_per_s=1 << 60),
        Rates(blocks_per_s=1e9, bytes_per_s=2 * MIB, rule_blocks_per_s=1e9, rule_bytes_per_s=1 << 60),
        Rates(blocks_per_s=1e9, bytes_per_s=1 << 60, rule_blocks_per_s=2.0, rule_bytes_per_s=1 << 60),
        Rates(blocks_per_s=1e9, bytes_per_s=1 << 60, rule_blocks_per_s=1e9, rule_bytes_per_s=2 * MIB),
    ],
)
def test_no_more_is_moved_than_the_rates_allow(rates):
    rig = Rig(n_fast=100, settings=AdvisorSettings(volumes=FAST, rates=rates, rules=("promote",)))
    rig.request(chain(30))
    assert [len(task.hashes) for task in rig.tick()] == [10]  # five seconds' worth
    assert [len(task.hashes) for task in rig.tick(after_s=1.0)] == [2]
    assert [len(task.hashes) for task in rig.tick(after_s=100.0)] == [10]
    for _ in range(4):
        rig.tick(after_s=1.0)
    assert rig.agent.n_moved["fast"] == 30


def test_three_volumes_are_filled_from_the_fastest_on():
    volumes = ("fast=/f?capacity=1GiB", "warm=/w?capacity=1GiB")
    rig = Rig(settings=AdvisorSettings(volumes=volumes, rates=NO_LIMITS, rules=("demote", "promote")))
    rig.agent.register_volume("warm", "", 4 * MIB)
    rig.agent._capacities["fast"] = 2
    keys = chain(10)
    rig.request(keys)
    rig.tick()
    rig.request(keys)
    rig.tick()
    assert {name: rig.where(keys).count(name) for name in ("fast", "warm", "")} == {"fast": 2, "warm": 4, "": 4}


def test_a_home_volume_that_is_fast_keeps_room_for_what_is_written():
    settings = AdvisorSettings(volumes=("home", "fast=/s?capacity=1GiB"), rates=NO_LIMITS)
    rig = Rig(n_fast=1000, n_home=100, settings=settings)
    rig.request(chain(100))
    rig.tick()
    assert rig.agent.describe().volumes[1].n_spare == 1


def test_a_volume_that_drains_is_given_nothing():
    rig = Rig(n_fast=10)
    rig.agent.unregister_volume("fast")
    rig.request(chain(6))
    assert rig.tick() == []


def test_old_blocks_are_dropped_with_those_that_continue_them():
    rig = Rig(settings=AdvisorSettings(rules=("prune",), rates=NO_LIMITS, prune=PruneAt(most_age_s=100.0)))
    old, kept = chain(5, seed=1), chain(5, seed=2)
    rig.request(old)
    rig.request(kept)
    rig.now_s += 90.0
    rig.request(kept[:3])
    (task,) = rig.tick(after_s=20.0)
    assert isinstance(task.order, Drop)
    assert set(task.hashes) == {key.hash for key in (*old, *kept[3:])}
    assert rig.where(kept) == [""] * 3 + [None] * 2


def test_the_ends_of_chains_are_dropped_first_when_a_volume_is_over_its_share():
    settings = AdvisorSettings(rules=("prune",), rates=NO_LIMITS, prune=PruneAt(most_share=0.5))
    rig = Rig(n_home=20, settings=settings)
    keys = chain(14)
    rig.request(keys)
    rig.tick()
    assert rig.where(keys) == [""] * 10 + [None] * 4


def test_a_volume_with_much_free_room_is_compacted_once_in_a_while():
    settings = AdvisorSettings(rules=("compact",), rates=NO_LIMITS, compact=CompactAt(0.5, 60.0))
    rig = Rig(settings=settings)
    keys = chain(10)
    rig.request(keys)
    assert rig.tick() == []
    rig.agent.drop([key.hash for key in keys[4:]])
    rig.tell(rig.agent.take_facts())
    (task,) = rig.plan()
    assert task.order == Compact("", 4)
    assert rig.plan() == []
    rig.carry_out([task])
    assert rig.tick(after_s=61.0) == []
    assert rig.agent.describe().volumes[1].file_bytes == 4 * MIB


def test_a_rule_of_others_is_asked():
    rig = Rig(settings=AdvisorSettings(volumes=FAST, rules=(f"{__name__}:Nothing", "promote")))
    rig.request(chain(3))
    assert [task.rule for task in rig.tick()] == ["promote"]


def test_a_rule_that_is_none_is_said_in_one_line():
    with pytest.raises(ConfigError, match=r"^rules: .*is no Rule: it lacks plan"):
        Rig(settings=AdvisorSettings(rules=(f"{__name__}:Idle",)))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 6), st.integers(0, 300)), min_size=1, max_size=30))
def test_in_any_life_the_index_is_right_and_no_volume_overfull(life):
    rig = Rig(n_fast=6, n_home=60)
    for seed, n_blocks, pause_s in life:
        rig.request(chain(n_blocks, seed))
        tasks = rig.tick(after_s=pause_s)
        moved = [block for task in tasks for block in task.hashes]
        assert len(moved) == len(set(moved))
        assert all(volume.n_spare >= 0 for volume in rig.agent.describe().volumes)
        refused = [task for task in tasks if isinstance(task.order, Move) and not len(task.hashes)]
        assert not refused
    assert np.isfinite(rig.index.model.scores(rig.index.table, rig.index.table.all_rows(), rig.now_s)).all()
