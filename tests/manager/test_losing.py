"""Blocks that turn out to be worthless, resets with things on their way, and the facts told of both."""

import pytest

from tenuto.errors import Cause
from tenuto.manager import Filled, Limits, Miss
from tenuto.pools.facts import Cleared, Removed, Stored
from tenuto.testing.blocks import make_chain
from tests.manager.manager_rig import DISK, HOST, pages, routes

pytestmark = pytest.mark.unit

LOSSES = [Cause.CORRUPT, Cause.MISSING]
NO_LOSSES = [cause for cause in Cause if cause not in LOSSES]


def on_disk(rig, n_blocks: int):
    chain = make_chain(n_blocks)
    rig.keep(chain)
    rig.lose(HOST, chain)
    return chain


def test_corrupt_and_missing_are_losses_and_nothing_else_is():
    assert [cause for cause in Cause if cause.is_loss] == LOSSES


@pytest.mark.parametrize("cause", LOSSES)
def test_a_lost_disk_block_is_forgotten_on_disk(make_rig, cause):
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 3)
    bring, load = rig.onboard(rig.hit(chain)).transfers
    rig.end(bring, {1: cause})
    rig.end(load)
    assert [block in rig.manager.disk for block in chain.hashes] == [True, False, True]
    assert [block in rig.manager.host for block in chain.hashes] == [True, False, True]
    assert rig.manager.statistics()[f"failed.disk_to_host.{cause.value}"] == 1


@pytest.mark.parametrize("cause", NO_LOSSES)
def test_a_disk_block_that_could_not_be_read_now_is_not_forgotten(make_rig, cause):
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 3)
    bring, _ = rig.onboard(rig.hit(chain)).transfers
    rig.end(bring, {1: cause})
    assert all(block in rig.manager.disk for block in chain.hashes)


def test_a_disk_block_lost_on_the_straight_way_is_forgotten_too(make_rig):
    rig = make_rig(n_host=3, n_disk=8)
    chain = on_disk(rig, 3)
    rig.keep(make_chain(3, seed=1))
    held = rig.hit(make_chain(3, seed=1))
    (load,) = rig.onboard(rig.hit(chain)).transfers
    rig.end(load, {0: Cause.CORRUPT})
    assert [block in rig.manager.disk for block in chain.hashes] == [False, True, True]
    held.release()


def test_a_lost_host_block_is_forgotten_in_host_memory_and_read_from_disk_again(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(3)
    rig.keep(chain)
    (load,) = rig.onboard(rig.hit(chain)).transfers
    rig.end(load, {2: Cause.CORRUPT})
    assert [block in rig.manager.host for block in chain.hashes] == [True, True, False]
    hit = rig.hit(chain)
    assert [span.tier for span in hit.spans] == [HOST, DISK]
    hit.release()


@pytest.mark.parametrize("cause", Cause)
def test_a_write_that_failed_says_nothing_of_the_copy_in_host_memory(make_rig, cause):
    rig, chain = make_rig(n_host=8, n_disk=8, limits=Limits(max_writes=1)), make_chain(2)
    _, first = rig.offload(chain)
    rig.report()
    rig.end(first, {0: cause})
    (second,) = rig.pump()
    rig.end(second, {0: cause})
    assert all(block in rig.manager.host for block in chain.hashes)
    assert not any(block in rig.manager.disk for block in chain.hashes)


def test_a_lost_block_of_a_peer_is_forgotten_there_and_ours_is_kept(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(2)
    rig.manager.peers.add("b", [(0, chain.key(0)), (1, chain.key(1))])
    bring, _ = rig.onboard(rig.hit(chain)).transfers
    rig.end(bring, {0: Cause.CORRUPT, 1: Cause.IO_ERROR})
    assert len(rig.manager.peers) == 1
    assert rig.lookup(chain) == Miss()


def test_a_leased_block_that_is_lost_stays_readable_for_who_holds_it(make_rig):
    rig, chain = make_rig(), make_chain(2)
    rig.keep(chain)
    first, second = rig.hit(chain), rig.hit(chain)
    (load,) = rig.onboard(first).transfers
    rig.end(load, {0: Cause.CORRUPT})
    assert rig.lookup(chain) == Miss()
    (load,) = rig.onboard(second).transfers
    rig.end(load)
    assert rig.manager.host.statistics().free == 7


def test_after_a_reset_nothing_is_found(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(3)
    rig.keep(chain)
    rig.manager.peers.add("b", [(0, chain.key(0))])
    rig.manager.reset()
    assert rig.lookup(chain) == Miss()
    assert len(rig.manager.peers) == 0


def test_what_is_staged_and_written_during_a_reset_is_dropped_when_it_arrives(make_rig):
    rig, chain = make_rig(n_host=8, n_disk=8), make_chain(3)
    rig.offload(chain)
    rig.manager.reset()
    rig.finish()
    assert rig.lookup(chain) == Miss()
    assert rig.manager.host.statistics().free == 8
    assert rig.manager.disk.statistics().free == 8
    assert not any(rig.facts.believed.values())


def test_what_is_brought_during_a_reset_is_dropped_and_its_load_still_runs(make_rig):
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 3)
    bring, load = rig.onboard(rig.hit(chain)).transfers
    rig.manager.reset()
    rig.end(bring)
    assert rig.lookup(chain) == Miss()
    assert rig.manager.host.statistics().leased == 3
    rig.end(load)
    assert rig.manager.host.statistics().free == 8


def test_the_backlog_is_forgotten_by_a_reset(make_rig):
    rig = make_rig(n_host=8, n_disk=8, limits=Limits(max_writes=1))
    rig.offload(make_chain(4))
    rig.report()
    rig.manager.reset()
    assert rig.manager.statistics()["backlog"] == 0
    rig.finish()
    assert rig.manager.statistics()["moved.host_to_disk"] == 1


def test_blocks_kept_after_a_reset_are_found_while_old_ones_still_land(make_rig):
    rig, old = make_rig(n_host=8, n_disk=8), make_chain(3)
    rig.offload(old)
    rig.manager.reset()
    new = make_chain(3, root=bytes(16))
    rig.offload(new)
    rig.finish()
    rig.hit(new).release()
    assert rig.lookup(old) == Miss()
    assert rig.manager.disk.statistics().registered == 3


def facts(rig) -> list:
    return rig.manager.take_facts()


def test_facts_are_told_in_the_order_things_happened(make_rig):
    rig, chain, other = make_rig(n_host=2, n_disk=2), make_chain(2), make_chain(2, seed=1)
    keys, others = ((c.key(0), c.key(1)) for c in (chain, other))
    stage, write = rig.manager.offload([Filled(chain, 0, pages(2))])
    assert facts(rig) == []
    for result in rig.worker.run([stage, write]):
        rig.manager.complete(result)
    assert facts(rig) == [Stored(HOST, keys), Stored(DISK, keys)]
    stage, write = rig.manager.offload([Filled(other, 0, pages(2))])
    assert facts(rig) == [Removed(HOST, keys[::-1]), Removed(DISK, keys[::-1])]
    for result in rig.worker.run([stage, write]):
        rig.manager.complete(result)
    assert facts(rig) == [Stored(HOST, others), Stored(DISK, others)]
    rig.manager.reset()
    assert facts(rig) == [Cleared(HOST), Cleared(DISK)]
    assert facts(rig) == []
    rig.facts.believed = {HOST: set(), DISK: set()}


def test_blocks_that_were_computed_are_told_of_with_their_tokens(make_rig):
    rig, chain = make_rig(n_host=4, n_disk=8), make_chain(4)
    rig.keep(chain, 0, 1)
    rig.facts.believed = {HOST: set(), DISK: set()}
    stage, write = rig.manager.offload([Filled(chain, 0, pages(4))])
    results = rig.worker.run([stage, write])
    for result in results:
        rig.manager.complete(result)
    blocks = [fact.blocks for fact in facts(rig)]
    assert blocks == [tuple(chain.block(i) for i in range(1, 4))] * 2


def test_a_block_brought_from_disk_is_told_of_in_host_memory_only(make_rig):
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 1)
    for result in rig.worker.run(rig.manager.onboard(rig.hit(chain), pages(1)).transfers):
        rig.manager.complete(result)
    assert rig.manager.told._facts == [Stored(HOST, (chain.key(0),))]
    assert rig.manager.told._facts[0].blocks == ()


@pytest.mark.parametrize("is_peer", [False, True])
def test_with_its_tokens_where_somebody_wants_them(make_rig, is_peer):
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 3)
    if is_peer:
        rig.manager.disk.invalidate(chain.hashes)
        rig.facts.believed[DISK].clear()
        rig.manager.restore_disk([(i, chain.key(i)) for i in range(3)], "b")
    rig.manager.flights.tells_tokens = True
    for result in rig.worker.run(rig.manager.onboard(rig.hit(chain, 1), pages(2)).transfers):
        rig.manager.complete(result)
    (fact,) = rig.manager.told._facts
    assert (fact.tier, fact.blocks) == (HOST, (chain.block(1), chain.block(2)))


def test_restored_blocks_are_told_of_each_once(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(2)
    rig.worker.content |= {(DISK, i): chain.hashes[i] for i in range(2)}
    rig.manager.restore_disk([(0, chain.key(0)), (1, chain.key(1))])
    assert rig.manager.told._facts == [Stored(DISK, (chain.key(0), chain.key(1)))]
    rig.check()


def test_restoring_nothing_is_no_fact(make_rig):
    rig = make_rig(n_disk=8)
    rig.manager.restore_disk([])
    assert rig.manager.take_facts() == []


def test_a_manager_without_a_disk_clears_its_host_memory_only(make_rig):
    rig = make_rig()
    rig.keep(make_chain(1))
    rig.manager.reset()
    assert rig.manager.told._facts == [Cleared(HOST)]
    assert routes(rig.offload(make_chain(1, root=bytes(16)))) == ["device_to_host"]
