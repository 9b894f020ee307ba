"""Streams as they come: snapshots in any order, blocks that go and come again, nonsense, engines of one name."""

from random import Random

import pytest

from tenuto.advisor import Advisor, AdvisorSettings, VolumeInfo
from tenuto.advisor.index import WorkerIndex
from tenuto.advisor.settings import PruneAt, Rates
from tenuto.events import Batch, BlockShape, Part, Source
from tenuto.events.grouping import group_facts
from tenuto.pools.facts import Removed, Stored, TierKind, Used
from tenuto.tokens import BlockHash, BlockKey
from tests.advisor.advisor_rig import FAST, MIB, NAME, NO_LIMITS, SOURCE, Rig, chain

pytestmark = pytest.mark.unit

DISK = TierKind.DISK
OLD = AdvisorSettings(rules=("prune",), rates=NO_LIMITS, prune=PruneAt(most_age_s=1000.0))


def groups(facts):
    return tuple(group for some, _ in group_facts(facts, BlockShape(MIB, 64), 1 << 30) for group in some)


def snapshot(keys, source=SOURCE):
    return Part(b"stream-1", 0, 0, True, source, groups([Stored(DISK, tuple(keys))]))


def batch(facts, time_s, first=1, source=SOURCE, stream=b"stream-1"):
    return Batch(stream, first, round(1e3 * time_s), source, groups(facts))


def home(n_places=1000):
    return [VolumeInfo("", "", n_places, 0, 0)]


@pytest.mark.parametrize("hears_later", [False, True])
def test_blocks_of_a_snapshot_are_as_young_as_what_is_heard_next(hears_later):
    advisor, keys = Advisor(OLD), chain(100)
    advisor.take(snapshot(keys))
    if hears_later:
        advisor.take(batch([], 5e8))
    assert advisor.plan(NAME, home(), MIB, 5e8 + 999.0) == []
    (task,) = advisor.plan(NAME, home(), MIB, 5e8 + 2001.0)
    assert len(task.hashes) == 100


def test_a_snapshot_after_a_long_silence_makes_nothing_old():
    advisor = Advisor(OLD)
    advisor.take(batch([], 5e8))
    advisor.take(snapshot(chain(10)))
    assert advisor.plan(NAME, home(), MIB, 5e8 + 5000.0) == []


def test_a_clock_that_is_set_back_makes_nothing_old():
    index, keys = WorkerIndex(), chain(3)
    index.take(batch([], 5000.0))
    index.take(batch([Stored(DISK, keys)], 10.0))
    assert index.heard_s == 5000.0
    assert index.table.used_s[index.table.all_rows()].tolist() == [5000.0] * 3


def test_no_more_is_pruned_in_a_minute_than_the_rates_allow():
    rates = Rates(rule_blocks_per_s=1.0)
    rig = Rig(n_home=1000, settings=AdvisorSettings(rules=("prune",), rates=rates, prune=PruneAt(most_age_s=10.0)))
    rig.request(chain(500))
    rig.now_s += 1000.0
    for _ in range(600):
        rig.carry_out(rig.plan())
        rig.now_s += 0.1
    assert 60 <= 500 - len(rig.index.table) <= 65


@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_in_any_order_gives_the_same_tree(seed):
    chains = [chain(20, seed=n) for n in range(50)]
    keys = [key for some in chains for key in some]
    Random(seed).shuffle(keys)
    settings = AdvisorSettings(rules=("prune",), rates=NO_LIMITS, prune=PruneAt(most_share=0.9))
    advisor = Advisor(settings)
    advisor.take(snapshot(keys))
    table = advisor.workers[SOURCE.place].table
    for some in chains:
        rows = table.known([key.hash for key in some])
        assert table.depth[rows].tolist() == list(range(20))
        assert table.n_children[rows].tolist() == [1] * 19 + [0]
    (task,) = advisor.plan(NAME, home(1000), MIB, 100.0)
    gone = set(task.hashes)
    assert len(gone) == 100
    for some in chains:
        kept = [key.hash not in gone for key in some]
        assert kept == sorted(kept, reverse=True)  # ends alone are cut


def test_a_parent_that_is_stored_again_keeps_its_children():
    rig, keys = Rig(settings=OLD), chain(2)
    rig.tell([Stored(DISK, keys)])
    rig.tell([Removed(DISK, keys[:1]), Stored(DISK, keys[:1])])
    table = rig.index.table
    rows = table.known([key.hash for key in keys])
    assert (table.n_children[rows].tolist(), table.depth[rows].tolist()) == ([1, 0], [0, 1])
    rig.tell([Removed(DISK, keys[1:])])
    assert table.n_children[rows[0]] == 0
    rig.now_s += 2000.0
    assert [len(task.hashes) for task in rig.plan()] == [1]


def test_children_are_told_before_their_parent_and_leave_before_it():
    rig, keys = Rig(), chain(3)
    rig.tell([Stored(DISK, keys[2:]), Stored(DISK, keys[1:2]), Stored(DISK, keys[:1])])
    table = rig.index.table
    assert table.n_children[table.known([key.hash for key in keys])].tolist() == [1, 1, 0]
    rig.tell([Removed(DISK, keys[1:])])
    rig.tell([Removed(DISK, keys[:1])])
    assert not table._children_of_absent


@pytest.mark.parametrize("n", [1, 2, 5])
def test_blocks_in_a_circle_end_nothing(n):
    hashes = [BlockHash(bytes([number]) * 16) for number in range(n)]
    keys = tuple(BlockKey(block, hashes[at - 1], hashes[0]) for at, block in enumerate(hashes))
    rig = Rig(settings=AdvisorSettings(volumes=FAST, rates=NO_LIMITS, prune=PruneAt(most_age_s=1.0)))
    rig.tell([Stored(DISK, (key,)) for key in keys])
    rig.tell([Used(DISK, keys)])
    rig.advisor.take(snapshot(keys))
    rig.now_s += 100.0
    rig.plan()
    assert len(rig.index.table) == n
    rig.tell([Removed(DISK, keys)])
    assert len(rig.index.table) == 0


def test_what_is_kept_of_chains_that_are_gone_is_nothing():
    rig = Rig()
    for seed in range(300):
        keys = chain(2, seed=seed)
        rig.tell([Stored(DISK, keys)])
        rig.tell([Used(DISK, keys)] * 5)
        rig.tell([Removed(DISK, keys)])
    index = rig.index
    assert len(index.table.prefixes) == 1
    assert len(index._touched) <= 2
    assert not index.table._children_of_absent


def test_engines_of_one_name_on_two_nodes_have_an_index_each(our_log):
    advisor = Advisor(AdvisorSettings(volumes=FAST, rates=NO_LIMITS), node="b")
    here, there = Source("b", "worker", 0, bytes(16)), Source("a", "worker", 0, bytes(16))
    advisor.take(batch([Stored(DISK, chain(5))], 1000.0, source=there, stream=b"there"))
    assert advisor.place_of(NAME) == there.place
    advisor.take(batch([Stored(DISK, chain(3, seed=1))], 1000.0, source=here, stream=b"here"))
    advisor.take(batch([], 1001.0, first=2, source=there, stream=b"there"))
    assert [len(index.table) for index in advisor.workers.values()] == [5, 3]
    for _ in range(2):
        assert advisor.place_of(NAME) == here.place
    assert [record.message for record in our_log()] == [
        "tenuto: worker worker, rank 0, is on several nodes: a, b; give each a name"
    ]
    elsewhere = Advisor(AdvisorSettings(volumes=FAST), node="c")
    for source in (here, there):
        elsewhere.take(batch([Stored(DISK, chain(3))], 1000.0, source=source))
    assert elsewhere.place_of(NAME) is None
    assert elsewhere.plan(NAME, home(), MIB, 1000.0) == []


@pytest.mark.parametrize("rates", [Rates(blocks_per_s=0.1), Rates(rule_bytes_per_s="512 KiB")])
def test_a_rate_below_a_block_is_slow_and_not_none(rates):
    rig = Rig(n_fast=100, settings=AdvisorSettings(volumes=FAST, rates=rates, rules=("promote",)))
    rig.agent._extent_bytes = 8 * MIB
    rig.request(chain(30))
    for _ in range(200):
        rig.tick()
    assert 10 <= rig.agent.n_moved["fast"] <= 21


def test_a_rate_of_nothing_moves_nothing():
    rig = Rig(settings=AdvisorSettings(volumes=FAST, rates=Rates(blocks_per_s=0.0)))
    rig.request(chain(3))
    assert rig.tick(after_s=1000.0) == []
