"""Every row of the transition table by its trigger in the library, and every pair that is no row."""

import warnings

import pytest

from tenuto.errors import FullError, LeaseError, StateError
from tenuto.pools import TRANSITIONS, SlotState, Trigger
from tests.library.library_rig import TOKENS, opened, prompt

pytestmark = pytest.mark.unit

TOKEN_IDS = prompt(1, 1)


def into(cache, state):
    """One block in this state: what writes it, and what reads it."""
    blocks = cache.allocate()
    if state is not SlotState.RESET:
        blocks.init_sequence()
        blocks.add_tokens(TOKEN_IDS)
    if state in (SlotState.COMPLETE, SlotState.REGISTERED):
        blocks.commit()
    return blocks, blocks.register() if state is SlotState.REGISTERED else None


def evict(cache, blocks, read):
    read.release()
    cache.allocate(len(cache._core.pool)).discard()


def invalidate(cache, blocks, read):
    cache.reset()
    read.release()


FIRE = {
    Trigger.INIT: lambda cache, blocks, read: blocks.init_sequence(),
    Trigger.APPLY: lambda cache, blocks, read: blocks.apply(TOKEN_IDS),
    Trigger.COMMIT: lambda cache, blocks, read: blocks.commit(),
    Trigger.REGISTER: lambda cache, blocks, read: blocks.register(),
    Trigger.DISCARD: lambda cache, blocks, read: blocks.reset(),
    Trigger.EVICT: evict,
    Trigger.INVALIDATE: invalidate,
}
FORBIDDEN = [(state, trigger) for state in SlotState for trigger in Trigger if (state, trigger) not in TRANSITIONS]
CHOSEN_BY_THE_CACHE = (Trigger.EVICT, Trigger.INVALIDATE)


def state_in_the_pool(cache, slot):
    return SlotState(int(cache._core.pool._states[slot]))


@pytest.mark.parametrize(("state", "trigger"), TRANSITIONS, ids=lambda value: value.name)
def test_a_block_moves_as_the_table_says(cache, state, trigger):
    blocks, read = into(cache, state)
    (slot,) = blocks.slots if read is None else read.slots
    assert state_in_the_pool(cache, slot) is state
    held = FIRE[trigger](cache, blocks, read)
    assert state_in_the_pool(cache, slot) is TRANSITIONS[state, trigger]
    if not blocks.is_consumed:
        assert blocks.states == [TRANSITIONS[state, trigger]]
        blocks.discard()
    if trigger is Trigger.REGISTER:
        held.release()


@pytest.mark.parametrize(
    ("state", "trigger"),
    [pair for pair in FORBIDDEN if pair[1] not in CHOSEN_BY_THE_CACHE],
    ids=lambda value: value.name,
)
def test_any_other_move_raises_one_line_that_names_the_state_and_changes_nothing(cache, state, trigger):
    blocks, read = into(cache, state)
    before = cache._core.pool.statistics()
    with pytest.raises(StateError, match=state.name) as raised:
        FIRE[trigger](cache, blocks, read)
    assert "\n" not in str(raised.value)
    assert cache._core.pool.statistics() == before
    if read is None:
        assert blocks.states == [state]
        blocks.discard()
    else:
        read.release()


@pytest.mark.parametrize(("state", "trigger"), [pair for pair in FORBIDDEN if pair[1] in CHOSEN_BY_THE_CACHE])
def test_what_is_being_filled_is_neither_evicted_nor_forgotten(cache, state, trigger):
    with into(cache, state)[0] as blocks:
        if trigger is Trigger.EVICT:
            with pytest.raises(FullError, match="8 blocks wanted, 7 of 8 to be had"):
                cache.allocate(8)
        else:
            cache.reset()
        assert blocks.states == [state]


def test_blocks_are_filled_in_order_each_after_the_commit_of_the_one_before(cache):
    tokens = prompt(1, 2)
    with cache.allocate(2) as blocks:
        blocks.init_sequence()
        assert blocks.add_tokens(tokens) == TOKENS  # up to the end of the block
        assert blocks.add_tokens(tokens) == 0
        with pytest.raises(StateError, match="block 0: it is full; commit it"):
            blocks.add_token(5)
        first = blocks.commit()
        assert blocks.states == [SlotState.COMPLETE, SlotState.RESET]
        for token in tokens[TOKENS:-1]:
            blocks.add_token(token)
        assert blocks.states == [SlotState.COMPLETE, SlotState.PARTIAL]
        with pytest.raises(StateError, match="cannot commit block 1: it has 3 tokens of 4"):
            blocks.commit()
        with pytest.raises(StateError, match="cannot register block 1: it is PARTIAL"):
            blocks.register()
        blocks.add_token(tokens[-1])
        second = blocks.commit()
        with pytest.raises(StateError, match="all 2 blocks are COMPLETE"):
            blocks.add_token(5)
        with blocks.register() as read:
            assert read.hashes == [first, second]
    with cache.match(tokens) as hit:
        assert hit.hashes == [first, second]


def test_the_first_blocks_are_registered_while_the_last_is_filled_and_the_lease_goes_on_behind_them(cache):
    tokens = prompt(1, 5)
    read = []
    with cache.allocate(4) as blocks:
        blocks.init_sequence()
        assert (len(blocks.register(0)), blocks.hashes) == (0, [])
        for token in tokens[: 4 * TOKENS]:
            blocks.add_token(token)
            if blocks.n_tokens % TOKENS == 0:
                blocks.commit()
            if blocks.n_complete == 2:
                hashes, slots = blocks.hashes, blocks.slots[:2]
                read.append(blocks.register(1))
                assert (read[-1].hashes, read[-1].slots) == (hashes[:1], slots[:1])
                assert (blocks.hashes, blocks.slots[0], blocks.n_complete) == (hashes[1:], slots[1], 1)
        assert blocks.states == [SlotState.COMPLETE]
        with pytest.raises(StateError, match="cannot register 2 of 1 blocks"):
            blocks.register(2)
        read.append(blocks.register(1))
        assert blocks.is_consumed
    assert [one.start for one in read] == [0, 1, 2, 3]
    for one in read:
        one.release()
    with cache.match(tokens) as hit:
        assert hit.hashes == [block for one in read for block in one.hashes]


def test_what_is_behind_the_full_blocks_is_given_up_where_they_are_registered(cache):
    tokens = prompt(1, 3)[:-1]
    with cache.allocate(4) as blocks:
        blocks.init_sequence()
        for _ in range(2):
            blocks.add_tokens(tokens[blocks.n_tokens :])
            blocks.commit()
        blocks.add_tokens(tokens[blocks.n_tokens :])
        with pytest.raises(StateError, match=r"block 2: it is PARTIAL; register\(2\) takes what is before it$"):
            blocks.register()
        with pytest.raises(StateError, match="block 2: it is PARTIAL"):
            blocks.register(3)
        blocks.register(blocks.n_complete).release()
        assert blocks.states == [SlotState.PARTIAL, SlotState.RESET]
        assert blocks.n_tokens == TOKENS - 1
    assert cache.statistics()["device.leased"] == 0
    with cache.match(tokens) as hit:
        assert len(hit) == 2


@pytest.mark.parametrize("bad", [-1, 2**32, "x", 1.5])
def test_what_is_no_token_is_refused_and_nothing_is_added(cache, bad):
    with cache.allocate() as blocks:
        blocks.init_sequence()
        with pytest.raises(StateError, match="tokens are whole numbers"):
            blocks.add_tokens([1, bad])
        assert blocks.n_tokens == 0


@pytest.mark.parametrize("n_tokens", [0, TOKENS - 1, TOKENS + 1])
def test_whole_blocks_take_whole_blocks_of_tokens(cache, n_tokens):
    with cache.allocate() as blocks:
        with pytest.raises(StateError, match=f"cannot apply {n_tokens} tokens to blocks of {TOKENS}"):
            blocks.apply(list(range(n_tokens)))
        assert blocks.states == [SlotState.RESET]


def test_a_reset_block_is_filled_with_another_sequence(cache):
    with cache.allocate(2) as blocks:
        blocks.apply(prompt(1))
        slots = blocks.slots
        blocks.reset()
        assert sorted(blocks.slots) == slots
        blocks.apply(prompt(2))
        blocks.register().release()
    with cache.match(prompt(1)) as one, cache.match(prompt(2)) as other:
        assert (len(one), len(other)) == (0, 2)


def test_leases_are_consumed_once(cache):
    blocks = cache.allocate(1)
    blocks.discard()
    for again in (blocks.discard, blocks.init_sequence, blocks.reset, lambda: blocks.view(0, 0, 0)):
        with pytest.raises(LeaseError, match="already consumed"):
            again()
    hit = cache.match(prompt(1))
    hit.release()
    for again in (hit.release, lambda: hit.slots, lambda: hit.view(0, 0, 0)):
        with pytest.raises(LeaseError, match="already released"):
            again()


def test_dropped_leases_give_their_blocks_back_and_warn():
    with opened() as cache:
        with pytest.warns(
            ResourceWarning, match=r"^<WritableBlocks device: 3 slots> was dropped without being released"
        ):
            cache.allocate(3)
        blocks = cache.allocate(2)
        blocks.apply(prompt(1))
        with pytest.warns(ResourceWarning, match=r"^<Blocks device: 2 slots> was dropped without being released"):
            blocks.register()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.match(prompt(9))  # nothing is held
            blocks = cache.allocate(1)
            blocks.reset()
            blocks.discard()
            del blocks
        assert cache.flush()
        assert cache._core.pool.statistics().leased == 0
        cache.check()
