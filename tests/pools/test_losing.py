"""Eviction order, and blocks that are forgotten while somebody holds them."""

import numpy as np
import pytest

from tenuto.errors import InvariantError, StateError
from tenuto.pools import LRU, Pool
from tenuto.testing.blocks import make_keys
from tenuto.testing.policy_contract import PolicyContract
from tests.pools.pool_steps import allocate, cache, evicted, fill, hashes, hold

pytestmark = pytest.mark.unit

A, B, C, D = make_keys(4)


@pytest.mark.contract
class TestLRU(PolicyContract):
    def make_policy(self):
        return LRU()


def test_the_least_recently_released_goes_first(make_pool):
    pool = make_pool(3)
    for key in (A, B, C):
        cache(pool, [key])
    pool.match([A.hash]).release()
    assert evicted(pool, 1) == [B]
    assert evicted(pool, 2) == [C, A]


def test_in_one_chain_the_tail_goes_before_the_head(make_pool):
    pool = make_pool(4)
    cache(pool, [A, B, C, D])
    assert evicted(pool, 2) == [D, C]
    with pool.match(hashes([A, B])) as found:
        assert len(found) == 2


def test_using_a_prefix_keeps_the_prefix(make_pool):
    pool = make_pool(4)
    cache(pool, [A, B, C, D])
    pool.match(hashes([A, B])).release()
    assert evicted(pool, 4) == [D, C, B, A]


def test_evicted_blocks_cannot_be_matched(make_pool):
    pool = make_pool(2)
    cache(pool, [A, B])
    assert evicted(pool, 2) == [B, A]
    assert len(pool.match([A.hash])) == 0
    assert pool.statistics().evictions == 2


def test_free_slots_are_used_before_anything_is_evicted(pool):
    cache(pool, [A, B])
    with allocate(pool, 6):
        assert pool.statistics().cached == 2


def test_releasing_nothing_costs_no_memory():
    policy = LRU()
    pool = Pool("test", 4, policy)
    cache(pool, [A])
    for _ in range(100):
        pool.match([]).release()
    assert len(policy._queue._queue) == 1


def test_the_queue_stays_bounded_however_often_blocks_are_used():
    policy = LRU()
    pool = Pool("test", 4, policy)
    cache(pool, [A, B, C])
    for _ in range(3000):
        pool.match(hashes([A, B, C])).release()
    assert sum(len(slots) for slots, _ in policy._queue._queue) <= 2 * 4 + 1024 + 3
    assert evicted(pool, 3) == [C, B, A]


def test_an_invalidated_block_is_gone_at_once_and_its_slot_is_free(pool):
    cache(pool, [A, B])
    assert pool.invalidate([A.hash, C.hash]) == [A]
    assert len(pool.match([A.hash])) == 0
    assert pool.statistics().free == 7


def test_a_block_is_invalidated_once_however_often_it_is_named(pool):
    cache(pool, [A, B])
    assert pool.invalidate([A.hash, B.hash, A.hash]) == [A, B]
    assert pool.invalidate([A.hash]) == []


def test_a_leased_block_that_is_invalidated_keeps_its_slot_until_the_last_release(pool):
    first = hold(pool, [A, B])
    second = pool.match([A.hash])
    assert pool.invalidate([A.hash]) == [A]
    assert A.hash not in pool
    pool.check()
    first.release()
    assert pool.statistics().leased == 1
    second.release()
    assert (pool.statistics().free, pool.statistics().cached) == (7, 1)


def test_a_reset_forgets_all_and_leaves_leases_good(pool):
    cache(pool, [A, B])
    held, filling = pool.match([A.hash]), fill(pool, [C])
    assert pool.reset() == [A, B]
    assert pool.statistics().registered == 0
    assert pool.keys(held) == [A]
    pool.check()
    held.release()
    registered = pool.register(filling)  # in flight: its owner decides what becomes of it
    assert registered.new == [C]
    registered.lease.release()
    assert pool.statistics().free == 7


def test_a_reset_pool_can_hold_the_same_blocks_again(pool):
    cache(pool, [A, B])
    pool.reset()
    cache(pool, [A, B])
    with pool.match(hashes([A, B])) as found:
        assert len(found) == 2


def test_growing_adds_free_slots_and_keeps_the_blocks(make_pool):
    pool = make_pool(2)
    cache(pool, [A, B])
    pool.grow(4)
    with allocate(pool, 2) as lease:
        assert lease.slots == [2, 3]  # low numbers first
        assert pool.statistics().cached == 2
    pool.grow(1)
    assert len(pool) == 4
    assert evicted(pool, 2) == [B, A]


def test_restored_blocks_are_in_their_slots_and_the_oldest_goes_first(pool):
    pool.restore([(5, A), (2, B), (7, C)])
    with pool.match(hashes([A, B, C])) as found:
        assert found.slots == [5, 2, 7]
    fresh = Pool("fresh", 8, LRU())
    old, new = make_keys(2, seed=8), make_keys(2, seed=9)
    fresh.restore([(5, old[0]), (2, new[0]), (6, old[1]), (7, new[1])])
    assert evicted(fresh, 3) == [old[1], old[0], new[1]]  # of a chain its end


def test_restored_slots_are_not_given_out(pool):
    pool.restore([(0, A), (1, B)])
    with allocate(pool, 6) as lease:
        assert sorted(lease.slots) == [2, 3, 4, 5, 6, 7]


def test_a_block_restored_twice_is_kept_once(pool):
    pool.restore([(0, A), (1, A)])
    assert pool.statistics().cached == 1
    with pool.match([A.hash]) as found:
        assert found.slots == [0]


@pytest.mark.parametrize("entries", [[(2, C), (0, D)], [(2, C), (1, D)], [(2, C), (2, D)], [(2, C), (8, D)]])
def test_a_restore_into_a_slot_in_use_is_refused_and_changes_nothing(pool, entries):
    cache(pool, [A])  # slot 0
    with allocate(pool, 1):  # slot 1: empty, but somebody's
        before = pool.statistics()
        with pytest.raises(StateError, match="can't be restored"):
            pool.restore(entries)
        assert pool.statistics() == before
        pool.check()


def unindex(pool: Pool) -> None:
    pool._slots.remove(np.array([0], np.int32), [A])


def _tampered(tamper) -> Pool:
    pool = Pool("tampered", 8)
    cache(pool, [A, B])
    pool.register(fill(pool, [C])).lease.release()
    tamper(pool)
    return pool


@pytest.mark.parametrize(
    ("rule", "tamper"),
    [
        ("a free slot twice", lambda p: p._free.append(p._free[0])),
        ("free slots are reset", lambda p: p._free.append(0)),
        ("free slots are reset and unleased", lambda p: p._leases.__setitem__(7, 1)),
        ("free \\+ leased \\+ cached = total", lambda p: p._free.pop()),
        ("cached count", lambda p: (setattr(p, "_n_cached", 4), p._free.pop())),
        (
            "a lease count below zero",
            lambda p: (p._leases.__setitem__(0, -1), setattr(p, "_n_cached", 2), p._keys.pop()),
        ),
        ("one holder", lambda p: (p._free.remove(7), p._states.__setitem__(7, 2), p._leases.__setitem__(7, 2))),
        ("the index names", lambda p: p._slots.__setitem__(A.hash, 1)),
        ("in the index or doomed", unindex),
        ("doomed slots are leased", lambda p: (unindex(p), p._doomed.add(0))),
        ("the index agrees with itself", lambda p: p._slots._rows.__setitem__(1, p._slots._rows[0])),
    ],
)
def test_check_finds_books_that_were_tampered_with(rule, tamper):
    with pytest.raises(InvariantError, match=rule):
        _tampered(tamper).check()


def test_check_finds_nothing_wrong_with_honest_books():
    _tampered(lambda pool: None).check()
    assert np.count_nonzero(_tampered(lambda pool: None)._states) == 3


@pytest.mark.parametrize("victims", [[], [0], [0, 1, 2], [0, 0], [0, 2], [0, 3], [-4, 1], [0, 4]], ids=str)
def test_a_policy_that_lies_gives_nobodys_slot_away(victims):
    """0 and 1 are cached, 2 is leased, 3 is free, 4 is none."""

    class Liar(LRU):
        def evict(self, n):
            return victims

    pool = Pool("p", 4, Liar())
    cache(pool, [A, B])
    held = hold(pool, [C])
    with pytest.raises(InvariantError, match="Liar"):
        pool.allocate(3)
    assert [block.hash in pool for block in (A, B, C)] == [True] * 3
    held.release()
    pool.check()


def test_fewer_than_no_slots_are_none(make_pool):
    assert len(allocate(make_pool(4), -1)) == 0
