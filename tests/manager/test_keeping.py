"""Offload: what is staged into host memory, and what is written through to disk, when."""

import pytest

from tenuto.errors import Cause
from tenuto.manager import Filled, Limits, Miss
from tenuto.testing.blocks import make_chain
from tests.manager.manager_rig import DISK, HOST, pages, routes

pytestmark = pytest.mark.unit


def test_new_blocks_are_staged_with_their_tokens_and_pages(make_rig):
    rig, chain = make_rig(), make_chain(3)
    (stage,) = rig.manager.offload([Filled(chain, 1, pages(2))])
    assert routes([stage]) == ["device_to_host"]
    assert stage.keys == (chain.key(1), chain.key(2))
    assert stage.blocks == (chain.block(1), chain.block(2))
    assert list(stage.pages) == pages(2)
    assert len(stage.targets) == 2
    rig.submit([stage])


def test_staged_blocks_are_found_only_when_their_stage_has_ended(make_rig):
    rig, chain = make_rig(), make_chain(2)
    rig.offload(chain)
    assert chain.hashes[0] not in rig.manager.host
    rig.report()
    rig.hit(chain).release()


def test_a_block_that_failed_to_be_staged_is_nowhere(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(3)
    rig.offload(chain, failures={1: Cause.IO_ERROR})
    rig.finish()
    for pool in (rig.manager.host, rig.manager.disk):
        assert [block in pool for block in chain.hashes] == [True, False, True]
    assert rig.manager.statistics()["failed.device_to_host.io_error"] == 1
    assert rig.manager.statistics()["failed.host_to_disk.io_error"] == 1


def test_what_is_in_host_memory_or_on_its_way_there_is_not_staged_again(make_rig):
    rig, chain = make_rig(), make_chain(4)
    rig.keep(chain, 0, 2)
    (stage,) = rig.manager.offload([Filled(chain, 2, pages(1))])
    (second,) = rig.manager.offload([Filled(chain, 0, pages(4))])
    assert second.keys == (chain.key(3),)
    assert list(second.pages) == pages(4)[3:]
    rig.submit([stage, second])


def test_what_has_no_room_in_host_memory_is_left_out_from_the_tail(make_rig):
    rig, chain = make_rig(n_host=4), make_chain(3)
    held = make_chain(2, seed=1)
    rig.keep(held)
    hit = rig.hit(held)
    rig.keep(chain)
    assert [block in rig.manager.host for block in chain.hashes] == [True, True, False]
    assert rig.manager.statistics()["skipped.host_full"] == 1
    hit.release()


def test_nothing_is_staged_when_all_of_host_memory_is_held(make_rig):
    rig = make_rig(n_host=2)
    rig.keep(make_chain(2))
    hit = rig.hit(make_chain(2))
    assert rig.offload(make_chain(2, seed=1)) == []
    hit.release()


def test_staged_blocks_are_written_through_right_behind(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(3)
    stage, write = rig.offload(chain)
    assert routes([stage, write]) == ["device_to_host", "host_to_disk"]
    assert write.after == (stage.id,)
    assert write.sources == stage.targets
    rig.report()
    assert rig.manager.host.statistics().leased == 3  # being written
    assert chain.hashes[0] not in rig.manager.disk
    rig.end(write)
    assert rig.manager.host.statistics().leased == 0
    assert all(block in rig.manager.disk for block in chain.hashes)


def test_what_is_on_disk_or_being_written_is_not_written_again(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(3)
    rig.keep(chain)
    rig.lose(HOST, chain)
    assert routes(rig.offload(chain)) == ["device_to_host"]
    rig.finish()
    other = make_chain(2, seed=1)
    rig.offload(other)
    rig.report()
    rig.lose(HOST, other)
    assert routes(rig.offload(other)) == ["device_to_host"]


def test_a_block_in_host_memory_that_is_not_on_disk_is_written_when_it_is_offered_again(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(3)
    rig.manager.use_disk(read=True, write=False)
    rig.keep(chain)
    assert rig.manager.statistics()["skipped.disk_off"] == 3
    rig.manager.use_disk(read=True, write=True)
    assert rig.offload(chain) == []
    (write,) = rig.pump()
    assert write.keys == tuple(chain.key(i) for i in range(3))
    rig.end(write)
    assert rig.manager.disk.statistics().registered == 3


def test_a_failed_write_costs_its_block_on_disk_only(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(3)
    _, write = rig.offload(chain)
    rig.report()
    rig.end(write, {0: Cause.NO_SPACE})
    assert [block in rig.manager.disk for block in chain.hashes] == [False, True, True]
    assert all(block in rig.manager.host for block in chain.hashes)
    assert rig.manager.statistics()["failed.host_to_disk.no_space"] == 1
    assert rig.manager.disk.statistics().free == 6


def test_the_oldest_disk_blocks_make_room(make_rig):
    rig = make_rig(n_host=16, n_disk=4, policy="lru")
    rig.keep(make_chain(2))
    rig.keep(make_chain(2, seed=1))
    rig.keep(make_chain(3, seed=2))
    held = [block in rig.manager.disk for seed in (0, 1, 2) for block in make_chain(3, seed).hashes[: 2 + seed // 2]]
    assert held == [False, False, True, False, True, True, True]


def test_without_a_disk_there_is_nothing_to_write(make_rig):
    rig = make_rig()
    assert routes(rig.offload(make_chain(2))) == ["device_to_host"]
    assert rig.pump() == []
    rig.report()
    assert not rig.manager.has_pending
    assert rig.lookup(make_chain(1, seed=5)) == Miss()


def test_a_write_into_a_disk_slot_waits_for_the_load_that_reads_it(make_rig):
    rig = make_rig(n_host=8, n_disk=3, limits=Limits(max_writes=8))
    chain = make_chain(3)
    rig.keep(chain)
    rig.lose(HOST, chain)
    bring, load = rig.onboard(rig.hit(chain)).transfers
    other = make_chain(2, seed=1)
    assert routes(rig.offload(other)) == ["device_to_host"]  # every disk slot is being read
    rig.report()
    assert rig.pump() == []
    rig.end(bring)
    (write,) = rig.pump()
    assert set(write.targets) <= set(bring.sources)
    rig.end(write)
    rig.end(load)
    assert [key.hash for key in rig.facts.believed[DISK] if key.hash in other.hashes]


def test_what_is_there_is_not_evicted_for_what_comes_behind_it(make_rig):
    rig, chain = make_rig(n_host=4), make_chain(6)
    rig.keep(chain, 0, 2)
    rig.keep(make_chain(2, seed=1))
    (stage,) = rig.manager.offload([Filled(chain, 0, pages(6))])
    assert [key.hash for key in stage.keys] == chain.hashes[2:4]
    rig.submit([stage])
    rig.finish()
    hit = rig.hit(chain)
    assert hit.n_blocks == 4
    hit.release()


def test_blocks_of_several_requests_leave_in_one_transfer_each_once(make_rig):
    rig = make_rig(n_host=4, n_disk=8)
    one, same, other = make_chain(2), make_chain(3), make_chain(2, seed=1)
    filled = [Filled(one, 0, pages(2)), Filled(same, 0, pages(3)), Filled(other, 0, pages(2))]
    stage, write = rig.manager.offload(filled)
    assert [key.hash for key in stage.keys] == [*one.hashes, same.hashes[2], other.hashes[0]]  # no room for the last
    assert stage.pages == (*pages(2), pages(3)[2], pages(1)[0])
    assert write.keys == stage.keys
    assert rig.manager.statistics()["skipped.host_full"] == 1
    rig.submit([stage, write])


def test_blocks_that_are_there_and_were_filled_by_several_requests_are_held_once(make_rig):
    rig, chain, other = make_rig(n_host=5), make_chain(3), make_chain(4, seed=1)
    rig.keep(chain)
    filled = [Filled(chain, 0, pages(3)) for _ in range(4)]
    (stage,) = rig.manager.offload([*filled, Filled(other, 0, pages(4))])
    assert stage.keys == (other.key(0), other.key(1))  # the others have no room beside what is held
    rig.manager.check()
    rig.submit([stage])
    rig.finish()
    rig.manager.check()
