"""A leader hears from its ranks where blocks lie, and how many there is room for."""

import pytest

from tenuto.connectors.session import WorkerReport
from tenuto.manager import inventory
from tenuto.pools.facts import Removed, Stored, TierKind
from tenuto.tiers.store import Capacity, StoreNews
from tests.session.session_rig import BLOCK, Rig, View

pytestmark = pytest.mark.unit

DISK = TierKind.DISK


def kept(rig, n_blocks=3, name="r"):
    """Blocks of a prompt that are on disk; their keys."""
    view = View(name, [hash(name) % 1000, *range(BLOCK * n_blocks - 1)])
    rig.compute(view)
    rig.answer(rig.step())
    pool = rig.leader.manager.disk
    return pool.registered(0, len(pool))


def hear(rig, rank=0, **news):
    rig.leader.manager.take_facts()
    told: list = []
    feed, rig.leader.feed = rig.leader.feed, lambda: told.extend(rig.leader.manager.take_facts())
    rig.leader.receive(WorkerReport(volumes={rank: StoreNews(**news)}))
    rig.leader.feed = feed
    rig.leader.check()
    return told


def test_a_move_is_told_as_stored_there_and_removed_here():
    rig = Rig()
    first, second, _ = kept(rig)
    assert hear(rig, moved=[(first, "fast"), (second, "fast")]) == [
        Stored(DISK, (first, second), volume="fast"), Removed(DISK, (first, second), ""),
    ]  # fmt: skip
    assert hear(rig, moved=[(first, "fast")]) == []
    assert hear(rig, moved=[(first, "")]) == [Stored(DISK, (first,)), Removed(DISK, (first,), "fast")]
    assert dict(rig.leader.manager.told.volumes) == {second.hash: "fast"}


def test_a_move_counts_when_it_is_so_on_every_rank():
    rig = Rig(world_size=2)
    first, *_ = kept(rig)
    assert hear(rig, 0, moved=[(first, "fast")]) == []
    assert hear(rig, 0, moved=[(first, "slow")]) == []
    assert hear(rig, 1, moved=[(first, "fast")]) == []
    assert len(hear(rig, 1, moved=[(first, "slow")])) == 2
    assert dict(rig.leader.manager.told.volumes) == {first.hash: "slow"}


def test_a_block_lost_on_one_rank_is_lost_and_told_where_it_was():
    rig = Rig(world_size=2)
    first, second, _ = kept(rig)
    for rank in range(2):
        hear(rig, rank, moved=[(first, "fast")])
    assert hear(rig, 1, lost=[first.hash, second.hash]) == [
        Removed(DISK, (first,), "fast"),
        Removed(DISK, (second,), ""),
    ]
    assert not rig.leader.manager.told.volumes
    assert hear(rig, 0, lost=[first.hash], moved=[(second, "fast")]) == []


def test_news_of_blocks_that_the_pool_lacks_is_no_news():
    rig = Rig()
    first, *_ = kept(rig)
    rig.leader.reset()
    assert hear(rig, moved=[(first, "fast")], lost=[first.hash]) == []


def test_a_reset_clears_every_volume():
    rig = Rig()
    first, *_ = kept(rig)
    hear(rig, moved=[(first, "fast")])
    rig.leader.manager.take_facts()
    rig.leader.manager.reset()
    assert [(fact.tier, fact.volume) for fact in rig.leader.manager.take_facts()] == [
        (TierKind.HOST, ""), (DISK, ""), (DISK, "fast"),
    ]  # fmt: skip
    assert not rig.leader.manager.told.volumes


def test_room_that_was_given_back_is_kept_empty_and_comes_back():
    rig = Rig(disk_slots=8)
    for number in range(4):
        kept(rig, 2, f"r{number}")
    manager = rig.leader.manager
    assert manager.disk.statistics().registered == 8
    rig.leader.receive(WorkerReport(disks={0: Capacity(8, is_growing=False, n_blocks=5)}))
    assert manager.disk.statistics().registered == 5
    assert manager.statistics()["disk.total"] == 5
    kept(rig, 2, "another")
    assert manager.disk.statistics().registered <= 5
    rig.leader.check()
    rig.leader.receive(WorkerReport(disks={0: Capacity(8, is_growing=False)}))
    for number in range(10, 14):
        kept(rig, 2, f"r{number}")
    assert manager.disk.statistics().registered == 8
    rig.leader.check()


def test_ranks_have_room_for_what_the_smallest_holds():
    rig = Rig(world_size=2, disk_slots=8)
    rig.leader.receive(
        WorkerReport(disks={0: Capacity(9, is_growing=False, n_blocks=6), 1: Capacity(8, is_growing=False)})
    )
    manager = rig.leader.manager
    assert (len(manager.disk), manager.statistics()["disk.total"]) == (8, 6)


def test_a_block_that_moved_more_than_once_is_told_where_it_is_at_last():
    rig = Rig()
    first, second, _ = kept(rig)
    assert hear(rig, moved=[(first, "fast"), (second, "fast"), (first, "")]) == [
        Stored(DISK, (second,), volume="fast"), Removed(DISK, (second,), ""),
    ]  # fmt: skip
    told = hear(rig, moved=[(second, ""), (second, "slow"), (second, "fast"), (second, "slow")])
    assert told == [Stored(DISK, (second,), volume="slow"), Removed(DISK, (second,), "fast")]


def test_what_one_rank_moved_before_a_block_was_lost_counts_no_more():
    rig = Rig(world_size=2)
    first, *_ = kept(rig)
    hear(rig, 0, moved=[(first, "fast")])
    rig.leader.manager.disk.invalidate([first.hash])
    assert hear(rig, 1, moved=[(first, "fast")]) == []
    assert hear(rig, 1, lost=[first.hash]) == []
    assert not rig.leader._ranks._moves


def test_a_snapshot_leaves_out_what_is_evicted_while_it_is_taken():
    rig = Rig()
    first, second, _ = kept(rig)
    hear(rig, moved=[(first, "fast"), (second, "fast")])
    manager = rig.leader.manager

    class Volumes(dict):
        def get(self, block, default=""):
            if block == first.hash:  # it goes between the two looks, and takes its volume along
                manager.told.removed(DISK, manager.disk.invalidate([block]))
                return default
            return super().get(block, default)

    taken = list(inventory(Volumes(manager.told.volumes), (DISK, manager.disk)))
    assert {fact.volume: first in fact.keys for fact in taken} == {"fast": False, "": False}
