"""Registering: all or the part that did not fail, and each block once."""

import pytest

from tenuto.pools import Allocated, Full
from tenuto.testing.blocks import make_keys
from tests.pools.pool_steps import allocate, cache, evicted, fill, hashes, hold

pytestmark = pytest.mark.unit

A, B, C, D = make_keys(4)


def test_blocks_are_invisible_until_they_are_registered(pool):
    lease = fill(pool, [A, B])
    assert A.hash not in pool
    assert len(pool.match([A.hash])) == 0
    pool.register(lease).lease.release()
    with pool.match([A.hash, B.hash, C.hash]) as found:
        assert pool.keys(found) == [A, B]


def test_the_match_is_the_longest_prefix(pool):
    cache(pool, [A, B, D])
    with pool.match(hashes([A, B, C, D])) as found:
        assert pool.keys(found) == [A, B]
    with pool.match(hashes([C, D])) as found:
        assert len(found) == 0


def test_failed_blocks_are_given_up_and_the_others_registered(pool):
    registered = pool.register(fill(pool, [A, B, C]), failed=frozenset({1}))
    assert registered.new == [A, C]
    assert pool.keys(registered.lease) == [A, C]
    assert B.hash not in pool
    assert pool.statistics().free == 6
    registered.lease.release()


def test_when_all_have_failed_nothing_is_leased(pool):
    registered = pool.register(fill(pool, [A, B]), failed=[0, 1])
    assert registered.new == []
    assert len(registered.lease) == 0
    assert pool.statistics().free == 8


def test_a_block_that_is_there_keeps_its_first_slot(pool):
    cache(pool, [A])
    registered = pool.register(fill(pool, [A, B]))
    assert registered.new == [B]
    assert pool.keys(registered.lease) == [A, B]
    assert registered.lease.slots == [0, 2]
    assert pool.statistics().free == 6  # the second slot of A is free again
    registered.lease.release()
    assert pool.statistics().cached == 2


def test_a_block_that_is_there_and_leased_gets_one_holder_more(pool):
    first = hold(pool, [A])
    second = pool.register(fill(pool, [A])).lease
    assert second.slots == first.slots
    first.release()
    assert pool.statistics().leased == 1
    second.release()
    assert pool.statistics().cached == 1


def test_a_block_that_is_there_but_doomed_is_registered_anew(pool):
    old = hold(pool, [A])
    pool.invalidate([A.hash])
    registered = pool.register(fill(pool, [A]))
    assert registered.new == [A]
    assert registered.lease.slots != old.slots
    pool.check()
    old.release()
    with pool.match([A.hash]) as found:
        assert found.slots == registered.lease.slots
    registered.lease.release()


def test_a_block_twice_in_one_lease_is_one_block(pool):
    registered = pool.register(fill(pool, [A, B, A]))
    assert registered.new == [A, B]
    assert pool.keys(registered.lease) == [A, B]
    assert pool.statistics().free == 6
    registered.lease.release()
    assert pool.statistics().cached == 2


def test_a_block_twice_in_one_lease_survives_the_failure_of_its_first(pool):
    registered = pool.register(fill(pool, [A, B, A]), failed={0})
    assert registered.new == [B, A]
    registered.lease.release()


def test_a_lease_with_known_blocks_keeps_the_order_of_the_chain(make_pool):
    pool = make_pool(4)
    cache(pool, [D])  # slot 0
    registered = pool.register(fill(pool, [A, D]))  # A in slot 1: block order is not slot order
    assert pool.keys(registered.lease) == [A, D]
    registered.lease.release()
    assert evicted(pool, 1) == [D]  # the tail first


def test_the_order_of_the_keys_is_that_of_the_lease(pool):
    with hold(pool, [C, A, B]) as lease:
        assert pool.keys(lease) == [C, A, B]


def test_no_room_is_an_answer_that_says_what_there_is(make_pool):
    pool = make_pool(4)
    cache(pool, [A, B])
    with allocate(pool, 1):
        assert pool.allocate(4) == Full(3)
        assert pool.allocate(2, evict=False) == Full(1)
        answer = pool.allocate(1, evict=False)
        assert isinstance(answer, Allocated)
        assert answer.evicted == []
        answer.lease.discard()


def test_no_slots_are_an_empty_lease(pool):
    answer = pool.allocate(0)
    assert isinstance(answer, Allocated)
    assert len(answer.lease) == 0
    pool.apply(answer.lease, [])
    assert pool.register(answer.lease).new == []
