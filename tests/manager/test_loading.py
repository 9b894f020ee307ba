"""Onboarding: which transfers a hit becomes, and what is held until they have ended."""

import pytest

from tenuto.errors import Cause, InvariantError
from tenuto.manager import Hit, Miss
from tenuto.pools.facts import Used
from tenuto.testing.blocks import make_chain
from tests.manager.manager_rig import DISK, HOST, pages, routes

pytestmark = pytest.mark.unit


def on_disk(rig, n_blocks: int, seed: int = 0):
    """A chain that is on disk and not in host memory."""
    chain = make_chain(n_blocks, seed)
    rig.keep(chain)
    rig.lose(HOST, chain)
    return chain


def test_host_blocks_are_loaded_straight_and_held_until_then(make_rig):
    rig, chain = make_rig(), make_chain(3)
    rig.keep(chain)
    onboard = rig.onboard(rig.hit(chain))
    (load,) = onboard.transfers
    assert routes(onboard.transfers) == ["host_to_device"]
    assert load.sources == (0, 1, 2)
    assert list(load.pages) == pages(3)
    assert onboard.awaited == {load.id}
    assert rig.manager.host.statistics().leased == 3
    rig.end(load)
    assert rig.manager.host.statistics().leased == 0


def test_disk_blocks_come_through_host_memory_and_stay_there(make_rig):
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 3)
    onboard = rig.onboard(rig.hit(chain))
    bring, load = onboard.transfers
    assert routes(onboard.transfers) == ["disk_to_host", "host_to_device"]
    assert load.after == (bring.id,)
    assert load.sources == bring.targets
    assert onboard.awaited == {load.id}
    assert rig.manager.disk.statistics().leased == 3
    rig.end(bring)
    assert rig.manager.disk.statistics().leased == 0
    assert rig.manager.host.statistics().leased == 3  # the load reads them
    rig.end(load)
    assert rig.manager.host.statistics().leased == 0
    hit = rig.hit(chain)
    assert hit.tiers == {HOST}
    hit.release()


def test_a_full_host_memory_is_gone_around(make_rig):
    rig = make_rig(n_host=4, n_disk=8)
    chain = on_disk(rig, 3)
    rig.keep(make_chain(2, seed=1))
    held = rig.hit(make_chain(2, seed=1))
    onboard = rig.onboard(rig.hit(chain))
    (load,) = onboard.transfers
    assert routes(onboard.transfers) == ["disk_to_device"]
    assert onboard.awaited == {load.id}
    assert list(load.pages) == pages(3)
    assert rig.manager.disk.statistics().leased == 3
    rig.end(load)
    assert rig.manager.disk.statistics().leased == 0
    assert chain.hashes[0] not in rig.manager.host
    held.release()


def test_room_in_host_memory_is_made_by_eviction(make_rig):
    rig = make_rig(n_host=4, n_disk=16)
    chain = on_disk(rig, 3)
    rig.keep(make_chain(4, seed=1))
    assert routes(rig.onboard(rig.hit(chain)).transfers) == ["disk_to_host", "host_to_device"]


def test_another_engines_blocks_are_brought_from_its_volume(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(2)
    rig.manager.peers.add("b", [(7, chain.key(0)), (3, chain.key(1))])
    bring, _ = rig.onboard(rig.hit(chain)).transfers
    assert (bring.volume, bring.sources) == ("b", (7, 3))
    rig.finish()
    hit = rig.hit(chain)
    assert hit.tiers == {HOST}
    hit.release()


def test_each_block_gets_the_pages_at_its_place(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(4)
    rig.keep(chain)
    rig.lose(HOST, chain, 1, 3)
    loads = [transfer for transfer in rig.onboard(rig.hit(chain)).transfers if transfer.pages]
    where = {key.hash: run for load in loads for key, run in zip(load.keys, load.pages, strict=True)}
    assert [where[block] for block in chain.hashes] == pages(4)


def test_a_block_that_could_not_be_brought_is_not_loaded_and_not_in_host_memory(make_rig):
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 3)
    bring, load = rig.onboard(rig.hit(chain)).transfers
    rig.end(bring, {1: Cause.IO_ERROR})
    assert chain.hashes[1] not in rig.manager.host
    assert rig.manager.host.statistics().leased == 3  # on another rank the load may still read all of them
    rig.end(load)  # the worker drops block 1 by itself
    assert rig.manager.host.statistics().leased == 0
    assert rig.manager.statistics()["failed.host_to_device.io_error"] == 1
    assert rig.manager.statistics()["moved.host_to_device"] == 2
    hit = rig.hit(chain)
    assert [span.tier for span in hit.spans] == [HOST, DISK, HOST]  # the disk copy may still be good
    hit.release()


def test_a_load_that_was_given_up_leaves_what_it_brought(make_rig):
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 3)
    bring, load = rig.onboard(rig.hit(chain)).transfers
    rig.worker.give_up(load.id)
    rig.report()
    assert rig.manager.has_pending
    rig.end(bring)
    assert not rig.manager.has_pending
    assert rig.manager.host.statistics().leased == 0
    hit = rig.hit(chain)
    assert hit.tiers == {HOST}
    hit.release()


def test_two_hits_on_the_same_disk_blocks_bring_them_once(make_rig):
    """Found before either was admitted, as when the engine had no memory for the first."""
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 3)
    first, second = rig.hit(chain), rig.hit(chain)
    assert routes(rig.onboard(first).transfers) == ["disk_to_host", "host_to_device"]
    assert routes(rig.onboard(second).transfers) == ["disk_to_device"]
    rig.finish()
    assert rig.manager.host.statistics().registered == 3


def test_a_hit_whose_blocks_came_into_host_memory_meanwhile_brings_no_second_copy(make_rig):
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 3)
    hit = rig.hit(chain)
    rig.keep(chain, 1, 2)  # computed by another request
    assert routes(rig.onboard(hit).transfers) == ["disk_to_device"]


def test_a_hit_given_back_can_be_evicted(make_rig):
    rig, chain = make_rig(n_host=3), make_chain(3)
    rig.keep(chain)
    hit = rig.hit(chain)
    rig.keep(make_chain(3, seed=1))
    assert chain.hashes[0] in rig.manager.host
    hit.release()
    rig.keep(make_chain(3, seed=1))
    assert rig.lookup(chain) == Miss()


def test_books_do_not_balance_while_leases_belong_to_nobody(make_rig):
    rig, chain = make_rig(), make_chain(1)
    rig.keep(chain)
    lease = rig.manager.host.match(chain.hashes)
    with pytest.raises(InvariantError, match="has leases, but nothing is on its way"):
        rig.manager.check()
    lease.release()
    rig.manager.flights.arriving[chain.hashes[0]] = 99
    with pytest.raises(InvariantError, match="arriving"):
        rig.manager.check()
    rig.manager.flights.arriving.clear()


def test_statistics_count_what_moved_and_what_is_where(make_rig):
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 3)
    rig.onboard(rig.hit(chain))
    rig.finish()
    figures = rig.manager.statistics()
    assert figures["moved.disk_to_host"] == figures["moved.host_to_device"] == figures["moved.host_to_disk"] == 3
    assert figures["host.registered"] == figures["disk.registered"] == 3
    assert figures["flights"] == figures["backlog"] == figures["peers"] == figures["host.leased"] == 0


def test_blocks_whose_load_still_reads_them_are_not_brought_a_second_time(make_rig):
    """One block of three failed; the others' slots must not be freed under a second load."""
    rig = make_rig(n_host=8, n_disk=16)
    chain = on_disk(rig, 3)
    bring, load = rig.onboard(rig.hit(chain)).transfers
    rig.end(bring, {1: Cause.IO_ERROR})
    found = rig.lookup(chain)  # the first load has not been reported yet
    if isinstance(found, Hit):
        again = rig.onboard(found).transfers
        rig.end(load)
        for transfer in again:
            rig.worker.start(transfer.id)
            if transfer is not again[-1]:
                rig.worker.end(transfer.id)
                rig.report()
        rig.keep(make_chain(5, seed=1))  # takes every slot that is free, while the last load reads
    rig.finish()


def test_a_slot_that_one_rank_failed_to_fill_is_not_used_while_another_rank_still_reads_it(make_rig):
    rig = make_rig(n_host=4, n_disk=16)
    chain = on_disk(rig, 3)
    bring, load = rig.onboard(rig.hit(chain)).transfers
    rig.end(bring, {1: Cause.IO_ERROR})
    stage = rig.offload(make_chain(4, seed=1))[0]
    assert not set(stage.targets) & set(bring.targets)
    rig.end(load)
    stage = rig.offload(make_chain(4, seed=2))[0]
    assert bring.targets[1] in stage.targets


def test_what_is_loaded_is_told_by_tier_where_somebody_hears_it(make_rig):
    rig = make_rig(n_disk=8)
    chain = on_disk(rig, 4)

    def load(hit):
        for transfer in rig.onboard(hit).transfers:
            rig.end(transfer)

    load(rig.hit(chain))
    assert not [fact for fact in rig.facts.heard if isinstance(fact, Used)]
    rig.manager.told.tells_uses = True
    rig.lose(HOST, chain)
    hit = rig.hit(chain)
    hit.trim(3)
    load(hit)
    load(rig.hit(chain))
    keys = tuple(chain.key(i) for i in range(4))
    told = [(fact.tier, fact.keys) for fact in rig.facts.heard if isinstance(fact, Used)]
    assert told == [(DISK, keys[:3]), (HOST, keys[:3]), (DISK, keys[3:])]


def test_what_is_loaded_from_another_engines_folder_is_not_told(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(2)
    rig.manager.told.tells_uses = True
    rig.manager.restore_disk([(i, chain.key(i)) for i in range(2)], "there")
    rig.onboard(rig.hit(chain))
    assert not [fact for fact in rig.manager.take_facts() if isinstance(fact, Used)]
