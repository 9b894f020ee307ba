"""What routers are told, in vLLM's events: read again, it is what sets say; what was missed is made good."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import ConfigError
from tenuto.events.consolidator import Consolidator
from tenuto.events.wire import read_batch
from tenuto.events.wire.schemas import TiersSchema, WorkerSchema
from tenuto.events.wire.vllm import (
    MEDIA,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineBatch,
    encode_batch,
    short_hash,
)
from tenuto.pools.facts import Stored, TierKind
from tests.events.wire.test_consolidator import ALL_ROUTED, Device, legal
from tests.events.wire.worlds import BLOCK_TOKENS, BLOCKS, CHAINS, ROUTER_TOKENS, Tiers, facts, reachable

pytestmark = pytest.mark.unit


class Reader:
    """Blocks by medium, from messages as they are sent; each is stored once and removed once."""

    def __init__(self):
        self.media = {}

    def take(self, payload):
        for event in read_batch(payload).events:
            match event:
                case BlockStored():
                    held = self.media.setdefault(event.medium, set())
                    assert not held & set(event.block_hashes)
                    assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                    held |= set(event.block_hashes)
                case BlockRemoved():
                    assert set(event.block_hashes) <= self.media[event.medium]
                    self.media[event.medium] -= set(event.block_hashes)
                case AllBlocksCleared():
                    self.media.clear()


def send(reader, schema):
    reader.take(encode_batch(schema.changes(), 0.0, 0))


def inventory(tiers):
    """What pools would give: keys without tokens."""
    return [
        Stored(tier, tuple(BLOCKS[n].key for n in sorted(names)), (), v) for (tier, v), names in tiers.places.items()
    ]


@given(st.data())
def test_a_worker_is_told_as_one_whatever_is_missed(data):
    schema, reader, tiers, device = WorkerSchema(BLOCK_TOKENS, ROUTER_TOKENS), Reader(), Tiers(), Device()
    for _ in range(data.draw(st.integers(0, 20))):
        kind = data.draw(st.sampled_from(["facts", "engine", "lost", "found", "forget"]))
        if kind == "facts":
            fact = data.draw(facts)
            tiers.apply(fact)
            schema.take([fact])
        elif kind == "engine":
            event = legal(device, data.draw)
            device.apply(event)
            schema.take_engine(EngineBatch(0.0, [event]))
        elif kind == "lost":
            for fact in data.draw(st.lists(facts, max_size=3)):
                tiers.apply(Stored(fact.tier, fact.keys, (), fact.volume) if isinstance(fact, Stored) else fact)
            schema.catch_up(inventory(tiers))
        elif kind == "found":
            chain, _ = data.draw(st.sampled_from(CHAINS))
            n = data.draw(st.integers(1, 3))
            tiers.learn(chain.hashes[:n])
            schema.learn(chain, n)
        else:
            device.copies.clear()
            schema.forget_engine()
        schema.check()
        send(reader, schema)
        assert reader.media.get(None, set()) == reachable(tiers.held() | device.held())
    late = Reader()
    late.media["GPU"] = {1}
    late.take(encode_batch([part.make() for part in schema.snapshot()], 0.0, 0))
    assert late.media.get(None, set()) == reader.media.get(None, set())
    assert schema.n_told == len(late.media.get(None, ()))
    schema.forget()
    send(reader, schema)
    assert not reader.media.get(None)


@given(st.data())
def test_tiers_are_told_by_medium_whatever_is_missed(data):
    schema, reader, tiers = TiersSchema(BLOCK_TOKENS, 0), Reader(), Tiers()
    for _ in range(data.draw(st.integers(0, 15))):
        kind = data.draw(st.sampled_from(["facts", "lost", "found"]))
        if kind == "facts":
            fact = data.draw(facts)
            tiers.apply(fact)
            schema.take([fact])
        elif kind == "lost":
            for fact in data.draw(st.lists(facts, max_size=3)):
                tiers.apply(Stored(fact.tier, fact.keys, (), fact.volume) if isinstance(fact, Stored) else fact)
            schema.catch_up(inventory(tiers))
        else:
            chain, _ = data.draw(st.sampled_from(CHAINS))
            tiers.known.update(name for name in chain.hashes if name in tiers.names)
            schema.learn(chain, 3)
        tiers.known &= tiers.names  # of what is nowhere the tokens are forgotten
        send(reader, schema)
        expected = {medium: set() for medium in MEDIA.values()}
        for (tier, _), names in tiers.places.items():
            expected[MEDIA[tier]] |= {short_hash(name) for name in names & tiers.known}
        assert {m: names for m, names in reader.media.items() if names} == {m: n for m, n in expected.items() if n}
    late = Reader()
    late.take(encode_batch([part.make() for part in schema.snapshot()], 0.0, 0))
    assert late.media == {medium: names for medium, names in reader.media.items() if names}
    schema.forget()
    send(reader, schema)
    assert not any(reader.media.values())


def test_long_prompts_are_told_in_pieces(monkeypatch):
    monkeypatch.setattr("tenuto.events.wire.schemas._MOST_BLOCKS", 4)
    schema = WorkerSchema(BLOCK_TOKENS, ROUTER_TOKENS)
    chain, _ = CHAINS[0]
    blocks = tuple(chain.block(i) for i in range(3))
    schema.take([Stored(TierKind.HOST, tuple(block.key for block in blocks), blocks)])
    first, second = schema.changes()
    assert (len(first.block_hashes), len(second.block_hashes)) == (4, 2)
    assert second.parent_block_hash == first.block_hashes[-1]
    assert {*first.block_hashes, *second.block_hashes} <= ALL_ROUTED.keys()


def test_its_own_consolidator_reads_it():
    schema, consolidator = WorkerSchema(BLOCK_TOKENS, ROUTER_TOKENS), Consolidator(BLOCK_TOKENS, ROUTER_TOKENS)
    chain, _ = CHAINS[1]
    blocks = tuple(chain.block(i) for i in range(3))
    schema.take([Stored(TierKind.HOST, tuple(block.key for block in blocks), blocks)])
    (told,) = consolidator.take_engine(read_batch(encode_batch(schema.changes(), 0.0, 0)))
    assert {block.block_hash for block in told.data.stored.blocks} <= ALL_ROUTED.keys()


def test_pages_that_do_not_divide_blocks_are_refused():
    with pytest.raises(ConfigError, match=r"\(48\) must divide layout\.block_tokens \(64\)"):
        WorkerSchema(64, 48)


def test_a_salt_is_told_as_dynamo_reads_it():
    chain, extra = CHAINS[2]
    assert extra.salt
    schema = WorkerSchema(BLOCK_TOKENS, ROUTER_TOKENS)
    blocks = tuple(chain.block(i) for i in range(3))
    schema.take([Stored(TierKind.HOST, tuple(block.key for block in blocks), blocks)])
    (told,) = msgspec.msgpack.decode(encode_batch(schema.changes(), 0.0, 0))[1]
    assert told["cache_salt"] == extra.salt
