"""Device events and ours, of all ranks, in one view: what sets say, and what Dynamo's tree then finds."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenuto.events.consolidator import Consolidator
from tenuto.events.wire import Scope, encode_events, read_batch, router_blocks
from tenuto.events.wire.vllm import AllBlocksCleared, BlockRemoved, BlockStored, EngineBatch
from tenuto.pools.facts import Cleared, Removed, TierKind
from tests.events.wire.worlds import (
    ALL_ROUTED,
    BLOCK_TOKENS,
    BLOCKS,
    CHAINS,
    ROUTER_TOKENS,
    Tiers,
    bits,
    facts,
    match_length,
    reachable,
    routed,
    with_tokens,
)  # fmt: skip

pytestmark = pytest.mark.adapter
real = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
RANKS = [0, 1]


def engine_name(sequence_hash):
    """The engine has names of its own: any that differ."""
    return sequence_hash ^ 0xFFFF


def stored(chain, extra, start=0, stop=None, **changes):
    """vLLM's event when it has computed these blocks of a prompt."""
    blocks = routed(chain, extra)
    tokens = memoryview(b"".join(chain.block(i).token_bytes for i in range(len(chain.hashes)))).cast("I").tolist()
    stop = len(blocks) if stop is None else stop
    keys = [None] * (stop - start)
    if extra.lora_name:
        keys = [(extra.lora_name,)] * len(keys)
    if extra.salt and not start:
        keys[0] = (*(keys[0] or ()), extra.salt)
    fields = {
        "block_hashes": [engine_name(block.sequence_hash) for block in blocks[start:stop]],
        "parent_block_hash": engine_name(blocks[start - 1].sequence_hash) if start else None,
        "token_ids": tokens[start * ROUTER_TOKENS : stop * ROUTER_TOKENS],
        "block_size": ROUTER_TOKENS, "lora_id": None, "medium": "GPU", "lora_name": extra.lora_name or None,
        "extra_keys": keys if any(keys) else None, "group_idx": 0, "kv_cache_spec_kind": "full_attention",
    }  # fmt: skip
    return BlockStored(**fields | changes)


class Device:
    """An engine's blocks as a set with copies; its life is legal: it removes what it has."""

    def __init__(self):
        self.copies = {}

    def apply(self, event):
        match event:
            case BlockStored():
                for name in event.block_hashes:
                    self.copies[name] = self.copies.get(name, 0) + 1
            case BlockRemoved():
                for name in event.block_hashes:
                    self.copies[name] -= 1
                    if not self.copies[name]:
                        del self.copies[name]
            case AllBlocksCleared():
                self.copies.clear()

    def held(self):
        return {name ^ 0xFFFF for name in self.copies}


def legal(device, draw):
    """An event that this engine may send. What stands on a block is removed before it or not: both occur."""
    kind = draw(st.sampled_from(["store", "store", "remove", "clear"]))
    if kind == "remove" and device.copies:
        names = draw(st.lists(st.sampled_from(sorted(device.copies)), min_size=1, max_size=4, unique=True))
        return BlockRemoved(names, "GPU", 0)
    if kind == "clear":
        return AllBlocksCleared()
    chain, extra = draw(st.sampled_from(CHAINS))
    n = len(routed(chain, extra))
    known = [i for i, block in enumerate(routed(chain, extra)) if engine_name(block.sequence_hash) in device.copies]
    start = draw(st.sampled_from([0, *(i + 1 for i in known if i + 1 < n)]))
    return stored(chain, extra, start, draw(st.integers(start + 1, n)))


@given(st.data())
@real
def test_one_view_of_two_ranks_is_what_sets_say(dynamo, data):
    consolidator, tree = Consolidator(BLOCK_TOKENS, ROUTER_TOKENS), dynamo.RadixTree()
    tiers, devices, told = {r: Tiers() for r in RANKS}, {r: Device() for r in RANKS}, {r: set() for r in RANKS}
    for _ in range(data.draw(st.integers(0, 25))):
        rank = data.draw(st.sampled_from(RANKS))
        if data.draw(st.booleans()):
            fact = data.draw(facts)
            tiers[rank].apply(fact)
            events = consolidator.take_facts([fact], rank)
        else:
            event = legal(devices[rank], data.draw)
            devices[rank].apply(event)
            events = consolidator.take_engine(EngineBatch(0.0, [event], rank))
        consolidator.check()
        for sent in events:
            assert sent.dp_rank == rank
            follow(told[rank], sent)
        for message in encode_events(events):
            tree.apply_event(9, message)  # raises where a parent or a block is missing
        for r in RANKS:
            assert told[r] == reachable(tiers[r].held() | devices[r].held())
    for chain, extra in CHAINS:
        lengths = {r: match_length(chain, extra, tiers[r].held() | devices[r].held()) for r in RANKS}
        found = tree.find_matches([block.tokens_hash for block in routed(chain, extra)]).scores
        assert found == {(9, r): length for r, length in lengths.items() if length}


def follow(told, event):
    """Keep a set by events; each block is stored once and removed once."""
    if hasattr(event.data, "stored"):
        new = {block.block_hash for block in event.data.stored.blocks}
        assert not new & told
        told |= new
    else:
        gone = set(event.data.removed.block_hashes)
        assert gone <= told
        told -= gone


CHAIN, EXTRA = CHAINS[0]
NAMES = CHAIN.hashes
ENGINE = [engine_name(block.sequence_hash) for block in routed(CHAIN, EXTRA)]


def make():
    return Consolidator(BLOCK_TOKENS, ROUTER_TOKENS)


def of_engine(consolidator, *events, rank=None):
    return consolidator.take_engine(EngineBatch(0.0, list(events), rank))


def n_stored(events):
    return sum(len(event.data.stored.blocks) for event in events if hasattr(event.data, "stored"))


def n_removed(events):
    return sum(len(event.data.removed.block_hashes) for event in events if hasattr(event.data, "removed"))


HOST = (TierKind.HOST, "")


def test_a_block_of_the_engine_and_of_a_tier_is_told_once():
    consolidator = make()
    assert n_stored(of_engine(consolidator, stored(CHAIN, EXTRA))) == 6
    assert consolidator.take_facts([with_tokens(NAMES, HOST)]) == []
    assert of_engine(consolidator, BlockRemoved(ENGINE, "GPU", 0)) == []
    assert n_removed(consolidator.take_facts([Cleared(TierKind.HOST)])) == 6


def test_clearing_the_engine_takes_away_what_it_alone_had():
    consolidator = make()
    of_engine(consolidator, stored(CHAIN, EXTRA))
    consolidator.take_facts([with_tokens(NAMES[:1], HOST)])
    assert n_removed(of_engine(consolidator, AllBlocksCleared())) == 4
    assert consolidator.statistics().told == 2
    assert n_removed(consolidator.forget_tiers()) == 2


def test_a_tiers_block_behind_what_the_device_alone_has_is_told():
    consolidator = make()
    of_engine(consolidator, stored(CHAIN, EXTRA))
    consolidator.take_facts([with_tokens(NAMES, HOST)])
    consolidator.take_facts([Removed(TierKind.HOST, (BLOCKS[NAMES[0]].key,))])
    assert of_engine(consolidator, BlockRemoved(ENGINE[2:], "GPU", 0)) == []
    assert n_removed(consolidator.forget_engine()) == 6  # what the tiers have stands behind a gap
    assert consolidator.statistics().on_worker == 4


def test_two_copies_on_the_device_are_one_block_until_both_have_gone():
    consolidator = make()
    of_engine(consolidator, stored(CHAIN, EXTRA))
    assert of_engine(consolidator, stored(CHAIN, EXTRA), BlockRemoved(ENGINE, "GPU", 0)) == []
    assert n_removed(of_engine(consolidator, BlockRemoved(ENGINE, "GPU", 0))) == 6


def test_full_reports_are_no_copies():
    consolidator = Consolidator(BLOCK_TOKENS, ROUTER_TOKENS, counts_copies=False)
    of_engine(consolidator, stored(CHAIN, EXTRA), stored(CHAIN, EXTRA))
    assert n_removed(of_engine(consolidator, BlockRemoved(ENGINE, "GPU", 0))) == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_cache_spec_kind": "sliding_window"},
        {"block_size": 3},
        {"block_size": 0, "token_ids": []},
        {"token_ids": [1, 2, 3]},
        {"extra_keys": [(["image", 0],)] * 6},
        {"extra_keys": [(b"digest of an embedding",)] * 6},
    ],
)
def test_what_is_no_whole_prefix_of_tokens_is_left_out(changes):
    consolidator = make()
    assert of_engine(consolidator, stored(CHAIN, EXTRA, **changes)) == []
    assert of_engine(consolidator, BlockRemoved(ENGINE, "GPU", 0)) == []
    consolidator.check()


def test_events_of_other_groups_are_left_out():
    consolidator = make()
    of_engine(consolidator, stored(CHAIN, EXTRA))
    assert of_engine(consolidator, stored(CHAIN, EXTRA, group_idx=1), BlockRemoved(ENGINE, "GPU", 1)) == []


def test_blocks_of_the_engine_may_be_several_of_the_routers():
    consolidator = make()
    names = ENGINE[1::2]
    events = of_engine(consolidator, stored(CHAIN, EXTRA, block_hashes=names, block_size=2 * ROUTER_TOKENS))
    told = [block.block_hash for block in events[0].data.stored.blocks]
    assert told == [block.sequence_hash for block in routed(CHAIN, EXTRA)]


def test_a_salt_that_reads_as_its_adapter_is_a_salt():
    tokens = list(range(ROUTER_TOKENS))
    event = stored(CHAIN, EXTRA, 0, 1, token_ids=tokens, lora_name="x", extra_keys=[("x", "x")])
    (sent,) = of_engine(make(), event)
    (expected,) = router_blocks(bits(tokens), ROUTER_TOKENS, Scope("x", "x"))
    assert sent.data.stored.blocks[0].block_hash == expected.sequence_hash


def test_a_snapshot_is_of_all_ranks():
    consolidator = make()
    of_engine(consolidator, stored(CHAIN, EXTRA), rank=1)
    consolidator.take_facts([with_tokens(NAMES[:1], HOST)], 0)
    snapshot = consolidator.snapshot()
    assert [(event.dp_rank, n_stored([event])) for event in snapshot] == [(0, 0), (0, 2), (1, 0), (1, 6)]
    assert [event.event_id for event in snapshot if event.dp_rank == 1] == [1, 2]


def test_a_real_message_is_what_it_reads():
    payload = msgspec.msgpack.encode(EngineBatch(0.0, [stored(CHAIN, EXTRA)], 1))
    (event,) = make().take_engine(read_batch(payload))
    assert event.dp_rank == 1
    assert {block.block_hash for block in event.data.stored.blocks} <= ALL_ROUTED.keys()
