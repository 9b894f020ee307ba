"""Leases: consumed once, by the pool that gave them; a dropped one gives its slots back."""

import gc
import warnings

import pytest

from tenuto.errors import LeaseError
from tenuto.pools import Full, Pool
from tenuto.testing.blocks import make_keys
from tests.pools.pool_steps import allocate, cache, fill, hashes, hold

pytestmark = pytest.mark.unit

KEYS = make_keys(4)


def test_a_lease_is_released_once(pool):
    lease = hold(pool, KEYS)
    lease.release()
    assert lease.is_consumed
    assert len(lease) == 0
    for again in (lease.release, lambda: pool.keys(lease)):
        with pytest.raises(LeaseError, match="already consumed"):
            again()


def test_a_writable_lease_is_consumed_once(pool):
    lease = fill(pool, KEYS)
    lease.discard()
    for again in (lease.discard, lambda: pool.register(lease), lambda: pool.apply(lease, [])):
        with pytest.raises(LeaseError, match="already consumed"):
            again()


def test_another_pool_takes_no_lease_of_this_one(make_pool):
    one, other = make_pool(name="one"), make_pool(name="other")
    shared, writable = hold(one, KEYS[:1]), fill(one, KEYS[1:2])
    for foreign in (
        lambda: other.release(shared),
        lambda: other.keys(shared),
        lambda: other.register(writable),
        lambda: other.discard(writable),
        lambda: other.init(writable, 0),
    ):
        with pytest.raises(LeaseError, match="of pool 'one', not 'other'"):
            foreign()
    shared.release()
    writable.discard()


def test_a_with_block_gives_a_lease_back(pool):
    cache(pool, KEYS)
    with pool.match(hashes(KEYS)) as lease:
        assert pool.statistics().leased == len(lease) == 4
    assert lease.is_consumed
    with allocate(pool, 2) as writable:
        assert pool.statistics().leased == 2
    assert writable.is_consumed
    assert pool.statistics().leased == 0


def test_a_with_block_leaves_a_consumed_lease_alone(pool):
    with fill(pool, KEYS) as lease:
        held = pool.register(lease)
    assert pool.statistics().leased == 4
    held.lease.release()


def test_a_with_block_gives_back_what_an_error_left(pool):
    with pytest.raises(ZeroDivisionError), allocate(pool, 3):
        _ = 1 // 0
    assert pool.statistics().free == 8


def test_a_lease_covers_its_slots_in_block_order(pool):
    cache(pool, KEYS)
    with pool.match(hashes(KEYS)) as lease:
        assert pool.keys(lease) == KEYS
        assert lease.slots == [0, 1, 2, 3]


def drop(holder: list) -> None:
    """Forget the last reference to a lease."""
    holder.clear()
    gc.collect()


@pytest.mark.parametrize("make", [hold, fill])
def test_a_dropped_lease_gives_its_slots_back_and_warns(pool, make):
    holder = [make(pool, KEYS)]
    with pytest.warns(ResourceWarning, match="4 slots> was dropped without being released"):
        drop(holder)
    assert pool.statistics().leased == 0
    assert pool.statistics().cached == (4 if make is hold else 0)


def test_a_dropped_lease_in_a_reference_cycle_too(pool):
    cycle = [hold(pool, KEYS)]
    cycle.append(cycle)
    holder = [cycle]
    del cycle
    with pytest.warns(ResourceWarning):
        drop(holder)
    assert pool.statistics().leased == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_lease_of_an_invalidated_block_frees_its_slot(pool):
    holder = [hold(pool, KEYS)]
    pool.invalidate(hashes(KEYS[:1]))
    drop(holder)
    assert (pool.statistics().free, pool.statistics().cached) == (5, 3)


def test_consumed_and_empty_leases_are_dropped_in_silence(pool):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hold(pool, KEYS).release()
        fill(pool, KEYS).discard()
        pool.match([])
        pool.match([b"unknown"])
        gc.collect()


def test_a_slot_is_evictable_only_when_its_last_lease_has_ended(make_pool):
    pool: Pool = make_pool(4)
    cache(pool, KEYS)
    first, second = pool.match(hashes(KEYS)), pool.match(hashes(KEYS[:2]))
    assert pool.allocate(1) == Full(0)
    first.release()
    assert pool.allocate(3) == Full(2)
    second.release()
    answer = pool.allocate(4)
    assert len(answer.evicted) == 4
    answer.lease.discard()


def test_leases_show_their_counts(pool):
    lease = hold(pool, KEYS)
    assert repr(lease) == "<Lease test: 4 slots>"
    lease.release()
    assert repr(lease) == "<Lease test: consumed>"
    assert repr(pool) == "<Pool test: 4 free + 0 leased + 4 cached = 8>"


def test_a_lease_is_split_into_two_that_have_all_its_slots(pool):
    lease = fill(pool, KEYS)
    slots = lease.slots
    rest = lease.split({1, 3})
    assert (lease.slots, rest.slots) == ([slots[0], slots[2]], [slots[1], slots[3]])
    pool.check()
    rest.discard()
    registered = pool.register(lease)
    assert registered.new == [KEYS[0], KEYS[2]]
    registered.lease.release()
    assert pool.statistics().free == 6


@pytest.mark.parametrize(("indices", "n_left"), [((), 4), (range(4), 0)])
def test_all_or_nothing_can_be_split_off(pool, indices, n_left):
    lease = fill(pool, KEYS)
    with lease.split(indices) as rest:
        assert (len(lease), len(rest)) == (n_left, 4 - n_left)
    lease.discard()
    with pytest.raises(LeaseError, match="already consumed"):
        lease.split([0])
