"""Every row of the transition table, and every pair that is not in it, through the public methods."""

import pytest

from tenuto.errors import LeaseError, StateError
from tenuto.pools import TRANSITIONS, Full, Pool, SlotState, Trigger
from tenuto.testing.blocks import make_keys
from tests.pools.pool_steps import allocate, fill, hold

pytestmark = pytest.mark.unit

KEY, NEXT = make_keys(2)


def into(pool: Pool, state: SlotState):
    """A lease on one slot in this state."""
    if state is SlotState.REGISTERED:
        return hold(pool, [KEY])
    if state is SlotState.COMPLETE:
        return fill(pool, [KEY])
    lease = allocate(pool, 1)
    if state is SlotState.PARTIAL:
        pool.init(lease, 0)
    return lease


def evict(pool: Pool, lease):
    """Make room by eviction; the slot must be cached for that."""
    lease.release()
    answer = pool.allocate(len(pool))
    assert [key.hash for key in answer.evicted] == [KEY.hash]
    answer.lease.discard()


def invalidate(pool: Pool, lease):
    pool.invalidate([KEY.hash])
    lease.release()


FIRE = {
    Trigger.INIT: lambda pool, lease: pool.init(lease, 0),
    Trigger.APPLY: lambda pool, lease: pool.apply(lease, [KEY]),
    Trigger.COMMIT: lambda pool, lease: pool.commit(lease, 0, KEY),
    Trigger.REGISTER: lambda pool, lease: pool.register(lease),
    Trigger.DISCARD: lambda pool, lease: pool.discard(lease),
    Trigger.EVICT: evict,
    Trigger.INVALIDATE: invalidate,
}
NOT_RESET = [SlotState.PARTIAL, SlotState.COMPLETE, SlotState.REGISTERED]
CHOSEN_BY_THE_POOL = (Trigger.EVICT, Trigger.INVALIDATE)
FORBIDDEN = [(state, trigger) for state in SlotState for trigger in Trigger if (state, trigger) not in TRANSITIONS]


def state_of(pool: Pool, slot: int) -> SlotState:
    return SlotState(int(pool._states[slot]))


def test_the_table_is_the_one_of_the_design():
    assert {(s.name, t.value): to.name for (s, t), to in TRANSITIONS.items()} == {
        ("RESET", "init"): "PARTIAL",
        ("RESET", "apply"): "COMPLETE",
        ("RESET", "discard"): "RESET",
        ("PARTIAL", "commit"): "COMPLETE",
        ("PARTIAL", "discard"): "RESET",
        ("COMPLETE", "register"): "REGISTERED",
        ("COMPLETE", "discard"): "RESET",
        ("REGISTERED", "evict"): "RESET",
        ("REGISTERED", "invalidate"): "RESET",
    }


@pytest.mark.parametrize(("state", "trigger"), TRANSITIONS, ids=lambda value: value.name)
def test_a_slot_moves_as_the_table_says(pool, state, trigger):
    lease = into(pool, state)
    slot = lease.slots[0]
    held = FIRE[trigger](pool, lease)
    assert state_of(pool, slot) is TRANSITIONS[state, trigger]
    pool.check()
    if held is not None:
        held.lease.release()
    elif not lease.is_consumed:
        lease.discard()


@pytest.mark.parametrize(
    ("state", "trigger"),
    [pair for pair in FORBIDDEN if pair[1] not in CHOSEN_BY_THE_POOL],
    ids=lambda value: value.name,
)
def test_any_other_move_raises_and_changes_nothing(pool, state, trigger):
    lease = into(pool, state)
    before = pool.statistics()
    with pytest.raises(StateError, match=f"cannot {trigger.value}"):
        FIRE[trigger](pool, lease)
    assert state_of(pool, lease.slots[0]) is state
    assert not lease.is_consumed
    assert pool.statistics() == before
    pool.check()
    lease.release() if state is SlotState.REGISTERED else lease.discard()


@pytest.mark.parametrize("state", [state for state, trigger in FORBIDDEN if trigger is Trigger.EVICT])
def test_eviction_chooses_no_slot_that_is_being_filled(pool, state):
    with into(pool, state) as lease:
        assert pool.allocate(len(pool)) == Full(len(pool) - 1)
        assert state_of(pool, lease.slots[0]) is state


@pytest.mark.parametrize("state", [state for state, trigger in FORBIDDEN if trigger is Trigger.INVALIDATE])
def test_invalidation_reaches_no_block_that_is_not_registered(pool, state):
    with into(pool, state) as lease:
        assert pool.invalidate([KEY.hash]) == []
        assert pool.reset() == []
        assert state_of(pool, lease.slots[0]) is state


def test_slots_of_different_states_do_not_move_together(pool):
    with allocate(pool, 2) as lease:
        pool.init(lease, 1)
        for fire in (lambda: pool.apply(lease, [KEY, NEXT]), lambda: pool.register(lease)):
            with pytest.raises(StateError, match="different states"):
                fire()
        assert [state_of(pool, slot) for slot in lease.slots] == [SlotState.RESET, SlotState.PARTIAL]


def test_a_block_filled_token_by_token_is_registered_like_a_whole_one(pool):
    lease = allocate(pool, 2)
    for index, key in enumerate([KEY, NEXT]):
        pool.init(lease, index)
        assert key.hash not in pool
        pool.commit(lease, index, key)
        assert key.hash not in pool
    registered = pool.register(lease)
    assert registered.new == [KEY, NEXT]
    assert pool.keys(registered.lease) == [KEY, NEXT]
    registered.lease.release()


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_outside_the_lease_is_an_error(pool, index):
    with allocate(pool, 2) as lease:
        with pytest.raises(IndexError):
            pool.init(lease, index)
        with pytest.raises(IndexError):
            pool.commit(lease, index, KEY)


@pytest.mark.parametrize("n_keys", [1, 3])
def test_keys_must_be_as_many_as_slots(pool, n_keys):
    with allocate(pool, 2) as lease, pytest.raises(StateError, match=f"{n_keys} blocks for 2 slots"):
        pool.apply(lease, make_keys(n_keys))


def test_a_lease_is_gone_once_its_slots_are_registered(pool):
    lease = fill(pool, [KEY])
    pool.register(lease).lease.release()
    for trigger in (Trigger.INIT, Trigger.APPLY, Trigger.COMMIT, Trigger.REGISTER, Trigger.DISCARD):
        with pytest.raises(LeaseError, match="already consumed"):
            FIRE[trigger](pool, lease)
