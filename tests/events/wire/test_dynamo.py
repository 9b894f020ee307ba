"""Our facts as Dynamo's events, fed to its own tree: it finds the right worker and the right length."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenuto.errors import ConfigError
from tenuto.events.wire import DynamoEvents, encode_events, tokens_hashes
from tenuto.events.wire.dynamo import CLEARED
from tenuto.pools.facts import Cleared, Removed, Stored, TierKind
from tenuto.testing.blocks import make_blocks
from tenuto.tokens import ExtraKeys, HashChain, MediaSpan
from tests.events.wire.worlds import (
    BLOCK_TOKENS,
    BLOCKS,
    CHAINS,
    ROUTER_TOKENS,
    Tiers,
    facts,
    match_length,
    reachable,
    routed,
    with_tokens,
)  # fmt: skip

pytestmark = pytest.mark.adapter
HOST, DISK = (TierKind.HOST, ""), (TierKind.DISK, "a")
WORKERS = [(11, 0), (11, 1), (12, 0)]
real = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_events(rank=0):
    return DynamoEvents(BLOCK_TOKENS, ROUTER_TOKENS, rank)


def apply(tree, worker, events):
    for event in encode_events(events):
        tree.apply_event(worker, event)


def scores(tree, chain, extra):
    return tree.find_matches([block.tokens_hash for block in routed(chain, extra)]).scores


@given(st.lists(st.tuples(st.sampled_from(WORKERS), facts), max_size=30))
@real
def test_after_every_fact_the_tree_knows_who_has_how_much(dynamo, life):
    tree = dynamo.RadixTree()
    worlds = {worker: Tiers() for worker in WORKERS}
    events = {worker: make_events(worker[1]) for worker in WORKERS}
    for worker, fact in life:
        worlds[worker].apply(fact)
        apply(tree, worker[0], events[worker].take([fact]))
        events[worker].check()
    for chain, extra in CHAINS:
        expected = {worker: match_length(chain, extra, world.held()) for worker, world in worlds.items()}
        assert scores(tree, chain, extra) == {worker: n for worker, n in expected.items() if n}


@given(st.lists(facts, max_size=20))
@real
def test_a_snapshot_makes_another_tree_the_same(dynamo, life):
    events, world = make_events(), Tiers()
    for fact in life:
        world.apply(fact)
    events.take(life)
    snapshot = events.snapshot()
    assert snapshot[0].data == CLEARED
    tree = dynamo.RadixTree()
    apply(tree, 5, snapshot)
    for chain, extra in CHAINS:
        length = match_length(chain, extra, world.held())
        assert scores(tree, chain, extra) == ({(5, 0): length} if length else {})


@given(st.lists(st.lists(facts, max_size=4), max_size=10))
def test_events_are_told_once_and_number_on(batches):
    events, world, told, next_id = make_events(), Tiers(), set(), 0
    for batch in batches:
        for fact in batch:
            world.apply(fact)
        for event in events.take(batch):
            assert event.event_id == next_id
            next_id += 1
            if hasattr(event.data, "stored"):
                new = {block.block_hash for block in event.data.stored.blocks}
                parent = event.data.stored.parent_hash
                assert not new & told
                assert parent is None or parent in told
                told |= new
            else:
                gone = set(event.data.removed.block_hashes)
                assert gone <= told
                told -= gone
        assert told == reachable(world.held())


def test_a_block_stays_until_its_last_tier_loses_it():
    names = CHAINS[0][0].hashes
    keys = tuple(BLOCKS[name].key for name in names)
    events = make_events()
    assert len(events.take([with_tokens(names, HOST)])) == 1
    assert events.take([with_tokens(names, DISK, is_known=False)]) == []
    assert events.take([Removed(TierKind.HOST, keys)]) == []
    assert events.take([Cleared(TierKind.OBJECT)]) == []
    (event,) = events.take([Cleared(TierKind.DISK)])
    assert len(event.data.removed.block_hashes) == 6


def test_what_stands_on_a_lost_block_comes_back_with_it():
    names = CHAINS[0][0].hashes
    events = make_events()
    (first,) = events.take([with_tokens(names, HOST)])
    lost = BLOCKS[names[1]]
    (removed,) = events.take([Removed(TierKind.HOST, (lost.key,))])
    assert list(removed.data.removed.block_hashes) == [b.block_hash for b in first.data.stored.blocks[:1:-1]]
    (again,) = events.take([with_tokens([names[1]], DISK)])
    assert again.data.stored.blocks == first.data.stored.blocks[2:]


def test_a_block_of_unknown_tokens_is_told_when_they_are_known():
    names = CHAINS[0][0].hashes
    events = make_events()
    assert events.take([with_tokens(names, DISK, is_known=False)]) == []
    assert events.learn([BLOCKS[names[1]], BLOCKS[names[2]]]) == []  # the first is not known
    (event,) = events.learn([BLOCKS[names[0]]])
    assert len(event.data.stored.blocks) == 6


def test_a_known_block_that_went_is_known_when_it_comes_back():
    names = CHAINS[0][0].hashes
    events = make_events()
    events.take([with_tokens(names, HOST), Cleared(TierKind.HOST)])
    (event,) = events.take([with_tokens(names, DISK, is_known=False)])
    assert len(event.data.stored.blocks) == 6


def test_blocks_with_media_and_all_behind_them_are_not_told():
    chain = HashChain(bytes(16), BLOCK_TOKENS, ExtraKeys(media=(MediaSpan("image", 9, 12),)))
    chain.append(list(range(3 * BLOCK_TOKENS)))
    blocks = tuple(chain.block(index) for index in range(3))
    (event,) = make_events().take([Stored(TierKind.HOST, tuple(block.key for block in blocks), blocks)])
    assert len(event.data.stored.blocks) == 2  # of the first block


def test_a_router_whose_blocks_do_not_divide_ours_is_refused():
    with pytest.raises(ConfigError, match=r"must divide layout\.block_tokens"):
        DynamoEvents(64, 48)


def test_an_event_in_json():
    (block,) = make_blocks(1, block_tokens=4)
    (event,) = DynamoEvents(4, 4).take([Stored(TierKind.HOST, (block.key,), (block,))])
    (number,) = tokens_hashes(block.token_bytes, 4)
    (data,) = encode_events([event])
    assert data.decode() == (
        '{"event_id":0,"data":{"stored":{"parent_hash":null,"blocks":'
        f'[{{"block_hash":{number},"tokens_hash":{number}}}]}}}},"dp_rank":0}}'
    )
