"""What a look-up finds, and what it holds."""

import pytest

from tenuto.errors import Cause
from tenuto.manager import Filled, Hit, Miss, Pending
from tenuto.testing.blocks import make_chain, make_keys
from tests.manager.manager_rig import DISK, HOST, pages, routes

pytestmark = pytest.mark.unit


def spans_of(hit: Hit) -> list[tuple]:
    return [(span.tier, span.volume, len(span.keys)) for span in hit.spans]


def test_an_empty_manager_has_nothing(make_rig):
    assert make_rig(n_disk=8).lookup(make_chain(3)) == Miss()


def test_a_chain_without_a_full_block_is_a_miss(make_rig):
    rig = make_rig()
    rig.keep(make_chain(3))
    assert rig.lookup(make_chain(0)) == Miss()
    assert rig.lookup(make_chain(3), 3) == Miss()


def test_blocks_in_host_memory_are_a_hit_that_holds_them(make_rig):
    rig, chain = make_rig(), make_chain(3)
    rig.keep(chain)
    hit = rig.hit(chain)
    assert (hit.start, hit.n_blocks, hit.tiers) == (0, 3, {HOST})
    assert spans_of(hit) == [(HOST, "", 3)]
    assert rig.manager.host.statistics().leased == 3
    hit.release()
    assert rig.manager.host.statistics().leased == 0


def test_a_longer_prompt_hits_its_known_prefix(make_rig):
    rig = make_rig()
    rig.keep(make_chain(2))
    hit = rig.hit(make_chain(5))
    assert hit.n_blocks == 2
    hit.release()


def test_a_hit_begins_where_it_was_asked_to(make_rig):
    rig, chain = make_rig(), make_chain(4)
    rig.keep(chain)
    hit = rig.hit(chain, 3)
    assert (hit.start, hit.n_blocks) == (3, 1)
    assert hit.spans[0].keys == (chain.key(3),)
    hit.release()


def test_what_the_device_already_has_is_used_in_host_memory_too(make_rig):
    rig, chain = make_rig(n_host=4, policy="lru"), make_chain(2)
    rig.keep(chain)
    rig.keep(make_chain(2, seed=1))
    assert rig.lookup(chain, 2) == Miss()  # all of it is on the device
    rig.keep(make_chain(1, seed=2))
    assert make_keys(2, seed=1)[1].hash not in rig.manager.host
    assert chain.hashes[1] in rig.manager.host


def test_a_block_on_its_way_is_worth_waiting_for(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(3)
    rig.keep(chain)
    rig.lose(HOST, chain)
    onboard = rig.onboard(rig.hit(chain))
    bring = onboard.transfers[0]
    assert bring.keys[0].hash == chain.hashes[0]
    assert rig.lookup(chain) == rig.lookup(make_chain(1), 0) == Pending(chain.hashes[0])
    assert rig.manager.flights.is_bringing(chain.hashes[0])
    rig.end(bring)
    rig.hit(chain).release()


def test_blocks_before_one_on_its_way_are_not_held_while_it_is_waited_for(make_rig):
    rig, chain = make_rig(n_host=8), make_chain(4)
    rig.keep(chain, 0, 2)
    (stage,) = rig.manager.offload([Filled(chain, 2, pages(2))])
    assert rig.lookup(chain) == Pending(chain.hashes[2])
    assert rig.manager.host.statistics().leased == 2  # those being staged
    rig.submit([stage])


def test_a_block_whose_load_was_given_up_is_not_waited_for(make_rig):
    """A disk that hangs must not hold every request that shares the prompt."""
    rig, chain = make_rig(n_disk=8), make_chain(3)
    rig.keep(chain)
    rig.lose(HOST, chain)
    bring, load = rig.onboard(rig.hit(chain)).transfers
    rig.worker.give_up(load.id, Cause.TIMEOUT)
    rig.report()
    assert rig.lookup(chain) == Miss()
    rig.end(bring)  # late, but good
    rig.hit(chain).release()


def test_blocks_before_one_that_is_overdue_are_still_a_hit(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(4)
    rig.keep(chain)
    rig.lose(HOST, chain)
    rig.keep(chain, 0, 2)  # computed again
    bring, load = rig.onboard(rig.hit(chain, 2)).transfers
    rig.worker.give_up(load.id, Cause.TIMEOUT)
    rig.report()
    hit = rig.hit(chain)
    assert spans_of(hit) == [(HOST, "", 2)]
    hit.release()
    rig.end(bring)


def test_host_memory_is_looked_at_before_the_disk(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(3)
    rig.keep(chain)
    hit = rig.hit(chain)
    assert hit.tiers == {HOST}
    hit.release()


def test_a_hit_goes_on_from_tier_to_tier_and_back(make_rig):
    rig, chain = make_rig(n_host=8, n_disk=8), make_chain(6)
    rig.keep(chain)
    rig.lose(HOST, chain, 0, 2)
    rig.lose(HOST, chain, 4, 5)
    hit = rig.hit(chain)
    assert spans_of(hit) == [(DISK, "", 2), (HOST, "", 2), (DISK, "", 1), (HOST, "", 1)]
    assert hit.tiers == {HOST, DISK}
    assert [key for span in hit.spans for key in span.keys] == [chain.key(i) for i in range(6)]
    assert routes(rig.onboard(hit).transfers) == [
        "disk_to_host", "host_to_device", "host_to_device", "disk_to_host", "host_to_device", "host_to_device",
    ]  # fmt: skip


def test_a_paused_disk_is_not_looked_at(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(3)
    rig.keep(chain)
    rig.lose(HOST, chain)
    rig.manager.peers.add("b", [(0, chain.key(0))])
    rig.manager.use_disk(read=False, write=True)
    assert rig.lookup(chain) == Miss()
    rig.manager.use_disk(read=True, write=True)
    rig.hit(chain).release()


def test_another_engines_blocks_are_found_last_and_hold_nothing(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(4)
    rig.keep(chain, 0, 1)
    rig.manager.peers.add("b", [(7, chain.key(1)), (3, chain.key(2))])
    rig.manager.peers.add("c", [(5, chain.key(3))])
    hit = rig.hit(chain)
    assert spans_of(hit) == [(HOST, "", 1), (DISK, "b", 2), (DISK, "c", 1)]
    assert hit.spans[1].slots == (7, 3)
    assert hit.spans[1].lease is None
    hit.release()


def test_a_later_place_of_a_peers_block_replaces_the_earlier(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(1)
    rig.manager.peers.add("b", [(7, chain.key(0))])
    rig.manager.peers.add("b", [(2, chain.key(0))])
    hit = rig.hit(chain)
    assert hit.spans[0].slots == (2,)
    hit.release()


def test_a_manager_without_a_disk_looks_at_no_peers(make_rig):
    rig, chain = make_rig(), make_chain(1)
    rig.manager.peers.add("b", [(7, chain.key(0))])
    assert rig.lookup(chain) == Miss()


def test_restored_blocks_are_hits_of_the_disk(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(3)
    rig.worker.content |= {(DISK, 4 + i): chain.hashes[i] for i in range(3)}
    rig.manager.restore_disk([(4 + i, chain.key(i)) for i in range(3)])
    rig.check()
    hit = rig.hit(chain)
    assert spans_of(hit) == [(DISK, "", 3)]
    assert hit.spans[0].slots == (4, 5, 6)
    hit.release()


def test_a_hit_may_be_cut_inside_a_span_and_what_is_cut_off_is_given_back(make_rig):
    rig, chain = make_rig(n_disk=8), make_chain(6)
    rig.keep(chain)
    rig.manager.host.invalidate(chain.hashes[2:])
    hit = rig.hit(chain)
    assert spans_of(hit) == [(HOST, "", 2), (DISK, "", 4)]
    assert hit.trim(3) == [("disk", 3)]
    assert spans_of(hit) == [(HOST, "", 2), (DISK, "", 1)]
    assert [key for span in hit.spans for key in span.keys] == [chain.key(i) for i in range(3)]
    assert all(len(span.slots) == len(span.lease) == len(span.keys) for span in hit.spans)
    assert rig.manager.disk.statistics().leased == 1
    assert hit.trim(2) == [("disk", 1)]
    assert rig.manager.disk.statistics().leased == 0
    hit.release()
    rig.manager.check()


def test_a_hit_at_another_engine_may_be_cut_too(make_rig):
    rig, chain = make_rig(n_disk=4), make_chain(3)
    rig.manager.peers.add("other", [(i, chain.key(i)) for i in range(3)])
    hit = rig.hit(chain)
    assert hit.trim(1) == [("peer", 2)]
    assert spans_of(hit) == [(DISK, "other", 1)]
    hit.release()
