"""The window and the backlog of writes to disk."""

import pytest

from tenuto.manager import Filled, Limits
from tenuto.testing.blocks import make_chain
from tests.manager.manager_rig import DISK, HOST, pages, routes

pytestmark = pytest.mark.unit


def n_writing(rig) -> int:
    return sum(len(flight.transfer.keys) for flight in rig.manager.flights._flights.values())


def backlog(rig) -> int:
    return rig.manager.statistics()["backlog"]


def test_no_more_than_the_window_is_on_its_way(make_rig):
    rig = make_rig(n_host=16, n_disk=16, limits=Limits(max_writes=3))
    _, write = rig.offload(make_chain(8))
    assert len(write.keys) == 3
    assert backlog(rig) == 5
    rig.report()
    assert n_writing(rig) == 3
    assert rig.pump() == []


def test_the_backlog_drains_as_writes_end_oldest_first(make_rig):
    rig, chain = make_rig(n_host=16, n_disk=16, limits=Limits(max_writes=3)), make_chain(8)
    _, write = rig.offload(chain)
    rig.report()
    written = list(write.keys)
    while rig.manager.has_pending:
        rig.end(write)
        for write in rig.pump():
            assert n_writing(rig) <= 3
            written += write.keys
    assert written == [chain.key(i) for i in range(8)]
    assert all(block in rig.manager.disk for block in chain.hashes)


def test_a_write_from_the_backlog_holds_its_host_blocks(make_rig):
    rig, chain = make_rig(n_host=4, n_disk=16, limits=Limits(max_writes=2)), make_chain(4)
    _, first = rig.offload(chain)
    rig.report()
    rig.end(first)
    (second,) = rig.pump()
    assert rig.manager.host.statistics().leased == 2
    rig.keep(make_chain(4, seed=1))  # may evict the first two only
    assert chain.hashes[2] in rig.manager.disk
    assert second.keys == (chain.key(2), chain.key(3))


def test_one_write_from_the_backlog_is_bounded_so_that_results_come_steadily(make_rig):
    rig = make_rig(n_host=64, n_disk=64)
    rig.manager.use_disk(read=True, write=False)
    rig.keep(make_chain(40))
    rig.manager.use_disk(read=True, write=True)
    rig.offload(make_chain(40))
    assert [len(write.keys) for write in rig.pump()] == [16, 16, 8]


def test_the_backlog_is_bounded(make_rig):
    rig = make_rig(n_host=16, n_disk=16, limits=Limits(max_writes=1, max_backlog=4))
    rig.offload(make_chain(8))
    assert backlog(rig) == 4
    assert rig.manager.statistics()["skipped.backlog_full"] == 3


def test_a_block_waits_once_however_often_it_is_offered(make_rig):
    rig, chain = make_rig(n_host=16, n_disk=16, limits=Limits(max_writes=1)), make_chain(4)
    rig.offload(chain)
    rig.report()
    rig.offload(chain)
    rig.offload(chain)
    assert backlog(rig) == 3


def test_what_has_left_host_memory_is_skipped_and_counted(make_rig):
    rig = make_rig(n_host=4, n_disk=16, limits=Limits(max_writes=1))
    _, write = rig.offload(make_chain(4))
    rig.report()
    rig.lose(HOST, make_chain(4), 1, 3)
    rig.end(write)
    assert [write.keys for write in rig.pump()] == [(make_chain(4).key(3),)]
    assert rig.manager.statistics()["skipped.left_host"] == 2
    assert backlog(rig) == 0


def test_what_is_still_being_staged_keeps_its_place(make_rig):
    rig = make_rig(n_host=8, n_disk=8, limits=Limits(max_writes=2))
    _, write = rig.offload(make_chain(2))
    rig.report()
    (stage,) = rig.manager.offload([Filled(make_chain(2, seed=1), 0, pages(2))])
    rig.end(write)
    assert rig.pump() == []
    assert backlog(rig) == 2
    rig.submit([stage])
    rig.report()
    assert [len(write.keys) for write in rig.pump()] == [2]


def test_a_growing_disk_evicts_nothing_and_its_backlog_waits(make_rig):
    rig = make_rig(n_host=16, n_disk=0)
    rig.manager.resize_disk(2, is_growing=True)
    rig.keep(make_chain(2))
    assert routes(rig.offload(make_chain(3, seed=1))) == ["device_to_host"]
    rig.report()
    assert rig.pump() == []
    assert (backlog(rig), rig.manager.has_pending) == (3, True)
    rig.manager.resize_disk(4, is_growing=True)
    (write,) = rig.pump()
    assert len(write.keys) == 2
    rig.end(write)
    rig.manager.resize_disk(4, is_growing=False)
    (write,) = rig.pump()
    assert len(write.keys) == 1
    rig.end(write)
    assert not any(name.startswith("failed") for name in rig.manager.statistics())
    assert rig.manager.disk.statistics().evictions == 1


def test_a_disk_without_slots_that_will_get_none_keeps_nothing_waiting(make_rig):
    rig = make_rig(n_host=8, n_disk=0)
    rig.offload(make_chain(3))
    rig.report()
    assert rig.pump() == []
    assert not rig.manager.has_pending


def test_a_disk_that_starts_empty_and_grows_keeps_it_waiting(make_rig):
    rig = make_rig(n_host=8, n_disk=0)
    rig.manager.resize_disk(0, is_growing=True)
    rig.offload(make_chain(3))
    rig.report()
    assert rig.pump() == []
    assert rig.manager.has_pending
    rig.manager.resize_disk(3, is_growing=False)
    assert [len(write.keys) for write in rig.pump()] == [3]


@pytest.mark.parametrize("n_disk", [1, 2, 5])
def test_a_disk_smaller_than_one_write_takes_what_it_can(make_rig, n_disk):
    rig = make_rig(n_host=32, n_disk=n_disk)
    rig.keep(make_chain(20))
    assert rig.manager.disk.statistics().registered == n_disk
    assert rig.manager.statistics()["moved.host_to_disk"] == 20  # each took the place of an older one


def test_a_backlog_waits_for_slots_that_are_in_use(make_rig):
    rig, chain = make_rig(n_host=16, n_disk=2, limits=Limits(max_writes=8)), make_chain(4)
    _, write = rig.offload(chain)
    assert len(write.keys) == 2
    rig.report()
    assert rig.pump() == []  # both slots are being written
    assert backlog(rig) == 2
    rig.end(write)
    assert [len(write.keys) for write in rig.pump()] == [2]


def test_a_paused_disk_is_not_written_and_its_backlog_is_dropped(make_rig):
    rig = make_rig(n_host=16, n_disk=16, limits=Limits(max_writes=2))
    rig.offload(make_chain(5))
    rig.report()
    rig.manager.use_disk(read=True, write=False)
    assert rig.pump() == []
    assert backlog(rig) == 0
    assert rig.manager.statistics()["skipped.disk_off"] == 3
    assert routes(rig.offload(make_chain(2, seed=1))) == ["device_to_host"]
    assert rig.manager.statistics()["skipped.disk_off"] == 5
    rig.finish()
    assert rig.manager.disk.statistics().registered == 2  # what was on its way


def test_a_disk_without_a_slot_that_gets_none_is_counted_with_a_reason_of_its_own(make_rig):
    rig = make_rig(n_host=16, n_disk=0, limits=Limits(max_writes=2))
    rig.manager.resize_disk(0, is_growing=True)
    rig.offload(make_chain(3))
    rig.report()
    assert rig.pump() == []
    assert backlog(rig) == 3  # slots may come
    rig.manager.resize_disk(0, is_growing=False)
    assert rig.pump() == []
    assert backlog(rig) == 0
    assert rig.manager.statistics()["skipped.no_disk_room"] == 3
    assert "skipped.disk_off" not in rig.manager.statistics()


def test_evicted_disk_blocks_are_told_before_the_write(make_rig):
    rig = make_rig(n_host=16, n_disk=2)
    rig.keep(make_chain(2))
    rig.offload(make_chain(2, seed=1))
    assert rig.facts.believed[DISK] == set()
    rig.finish()
    assert {key.hash for key in rig.facts.believed[DISK]} == set(make_chain(2, seed=1).hashes)


def test_what_waits_goes_before_what_comes(make_rig):
    rig, chain, later = (
        make_rig(n_host=16, n_disk=16, limits=Limits(max_writes=2)),
        make_chain(4),
        make_chain(2, seed=1),
    )
    _, write = rig.offload(chain)
    rig.report()
    rig.end(write)
    (_,) = rig.offload(later)  # its writes wait, too
    rig.report()
    (write,) = rig.pump()
    assert write.keys == (chain.key(2), chain.key(3))
    rig.end(write)
    (write,) = rig.pump()
    assert write.keys == (later.key(0), later.key(1))
