"""Several ranks: the leader goes by what all of them have and all of them did."""

import pytest

from tenuto.connectors.session import Handshake, WorkerReport
from tenuto.errors import Cause
from tenuto.testing.blocks import make_keys
from tenuto.tiers.store import Capacity
from tenuto.transfers.plan import BlockFailure, Route, TransferResult
from tests.session.session_rig import BLOCK, LAYOUT, NAMESPACE, Rig, View

pytestmark = pytest.mark.unit

TOKENS = list(range(5 * BLOCK))
KEYS = make_keys(4)


def shake(rank: int, disk: Capacity | None, recovered=()) -> Handshake:
    return Handshake(rank, LAYOUT.extent_bytes, NAMESPACE.digest, disk, list(recovered))


def connected(*disks: Capacity | None) -> Rig:
    rig = Rig(world_size=len(disks), disk_slots=0)
    rig.leader.connect({rank: shake(rank, disk) for rank, disk in enumerate(disks)})
    return rig


def n_slots(rig: Rig) -> int:
    return rig.leader.statistics()["disk.total"]


def is_growing(rig: Rig) -> bool:
    return rig.leader.manager._writes.is_growing


def test_the_disk_is_as_large_as_the_smallest_ranks():
    rig = connected(Capacity(8, True), Capacity(3, True), Capacity(5, False))
    assert (n_slots(rig), is_growing(rig)) == (3, True)


def test_the_disk_grows_no_more_when_its_smallest_rank_does_not():
    rig = connected(Capacity(8, True), Capacity(3, False))
    assert (n_slots(rig), is_growing(rig)) == (3, False)


def test_a_rank_that_says_nothing_is_as_large_as_it_last_said():
    rig = connected(Capacity(4, True), Capacity(4, True))
    rig.leader.receive(WorkerReport(disks={0: Capacity(12, False)}))
    assert (n_slots(rig), is_growing(rig)) == (4, True)
    rig.leader.receive(WorkerReport(disks={1: Capacity(8, True)}))
    assert (n_slots(rig), is_growing(rig)) == (8, True)
    rig.leader.receive(WorkerReport(disks={1: Capacity(16, False)}))
    assert (n_slots(rig), is_growing(rig)) == (12, False)


def test_without_a_disk_on_every_rank_there_is_none():
    rig = connected(Capacity(8, False), None)
    assert n_slots(rig) == 0
    rig.leader.receive(WorkerReport(disks={0: Capacity(16, False)}))
    assert n_slots(rig) == 0
    assert [t.route for t in rig.step((View("a", TOKENS), 5 * BLOCK)).after_forward] == [Route.DEVICE_TO_HOST]


def test_blocks_beyond_the_common_size_are_not_recovered():
    rig = Rig(world_size=2, disk_slots=0)
    found = [(0, KEYS[0]), (5, KEYS[1])]
    shakes = [shake(0, Capacity(8, False), found), shake(1, Capacity(4, False), found[::-1])]
    rig.leader.connect(dict(enumerate(shakes)))
    assert [key.hash in rig.leader.manager.disk for key in KEYS[:2]] == [True, False]


def test_reports_of_a_step_are_merged():
    one = WorkerReport({1: [TransferResult(1)]}, {0: Capacity(4, True)}, {0: {"b": [(0, KEYS[0])]}})
    two = WorkerReport(
        {1: [TransferResult(1)], 2: [TransferResult(2)]}, {1: Capacity(3, False)}, {1: {"b": [(1, KEYS[1])]}}
    )
    one.merge(two)
    assert {number: len(results) for number, results in one.results.items()} == {1: 2, 2: 1}
    assert one.disks == {0: Capacity(4, True), 1: Capacity(3, False)}
    assert one.peers == {0: {"b": [(0, KEYS[0])]}, 1: {"b": [(1, KEYS[1])]}}


def hear(rig: Rig, rank: int, *entries) -> int:
    """A rank sees these listed by another engine: how many of its blocks count now."""
    rig.leader.receive(WorkerReport(peers={rank: {"b": list(entries)}}))
    return rig.leader.statistics()["peers"]


def test_another_engines_block_counts_when_every_rank_has_seen_it_listed():
    rig = Rig(world_size=2)
    assert hear(rig, 0, (0, KEYS[0]), (1, KEYS[1])) == 0
    assert hear(rig, 0, (0, KEYS[0])) == 0  # the same rank again says nothing new
    assert hear(rig, 1, (1, KEYS[1]), (0, KEYS[2])) == 1  # slot 0 has another block by now
    assert hear(rig, 0, (0, KEYS[2])) == 2
    assert rig.leader.manager.peers.find(KEYS[2].hash) == ("b", 0)
    assert rig.leader.manager.peers.find(KEYS[0].hash) is None


def test_of_a_slot_that_was_reused_between_two_reports_the_last_block_counts():
    rig = Rig(world_size=2)
    news = {"b": [(0, KEYS[0]), (0, KEYS[1])]}
    rig.leader.receive(WorkerReport(peers={0: news, 1: news}))
    assert rig.leader.manager.peers.find(KEYS[1].hash) == ("b", 0)
    assert rig.leader.statistics()["peers"] == 1


def test_what_ranks_have_seen_at_the_start_counts_too():
    rig = Rig(world_size=2, disk_slots=0)
    disk = Capacity(8, is_growing=False)
    shakes = [
        Handshake(rank, LAYOUT.extent_bytes, NAMESPACE.digest, disk, peers={"b": entries})
        for rank, entries in enumerate([[(0, KEYS[0]), (1, KEYS[1])], [(0, KEYS[0])]])
    ]
    rig.leader.connect(dict(enumerate(shakes)))
    assert rig.leader.statistics()["peers"] == 1
    assert hear(rig, 1, (1, KEYS[1])) == 2


def test_a_load_is_over_for_the_leader_when_it_is_over_on_every_rank():
    rig = Rig(world_size=2)
    rig.compute(View("a", TOKENS))
    rig.leader.admit("b", list(range(10)), rig.leader.lookup(View("b", TOKENS), 0))
    (load,) = rig.step().now
    answer = WorkerReport(results={load.id: [TransferResult(load.id)]})
    rig.leader.receive(answer)
    assert rig.leader.statistics()["host.leased"] == 5
    rig.leader.receive(answer)
    assert rig.leader.statistics()["host.leased"] == 0


def test_a_block_corrupt_on_one_rank_is_forgotten_on_all_whichever_answers_last():
    corrupt, sick = (
        [TransferResult(0, (BlockFailure(2, cause),))] for cause in (Cause.CORRUPT, Cause.IO_ERROR)
    )  # of another number each time
    for order in ((corrupt, sick), (sick, corrupt)):
        rig = Rig(world_size=2)
        rig.compute(View("a", TOKENS))
        rig.leader.manager.host.reset()
        rig.leader.admit("b", list(range(10)), rig.leader.lookup(View("b", TOKENS), 0))
        bring, load = rig.step().now
        for results in order:
            failures = results[0].failures
            answers = {number: [TransferResult(number, failures)] for number in (bring.id, load.id)}
            rig.leader.receive(WorkerReport(results=answers))
        assert rig.leader.statistics()["disk.registered"] == 4
        assert rig.leader.statistics()["failed.disk_to_host.corrupt"] == 1
        rig.leader.check()
