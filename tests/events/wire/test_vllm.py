"""vLLM's events: its own decoder, of both versions, reads ours, and we read what its structs write."""

import json
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import ConfigError, EventsError
from tenuto.events.consolidator import Consolidator
from tenuto.events.wire import VllmEvents, read_batch, read_message
from tenuto.events.wire.schemas import WorkerSchema
from tenuto.events.wire.vllm import (
    MEDIA,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    HashForm,
    encode_batch,
    short_hash,
)
from tenuto.pools.facts import Cleared, Removed, Stored, TierKind
from tenuto.testing.blocks import make_blocks
from tenuto.tokens import ExtraKeys, HashChain, MediaSpan
from tests.events.wire.worlds import BLOCK_TOKENS, BLOCKS, CHAINS, ROUTER_TOKENS, Tiers, facts, routed, with_tokens

pytestmark = pytest.mark.adapter

REPOSITORY = Path(__file__).resolve().parents[3]
VERSIONS = {"0.32": Path(sysconfig.get_path("purelib")), "0.27.1": REPOSITORY / ".venv" / "vllm-0.27.1"}
HOST, DISK, DISK_B, OBJECT = (TierKind.HOST, ""), (TierKind.DISK, "a"), (TierKind.DISK, "b"), (TierKind.OBJECT, "")


def theirs(version, payloads=(), events=()):
    """What vLLM's own structs make of `payloads`, and what they write for `events`."""
    script = Path(__file__).with_name("vllm_decoder.py")
    asked = {"payloads": [payload.hex() for payload in payloads], "events": list(events)}
    done = subprocess.run(
        [sys.executable, str(script), str(VERSIONS[version])],
        input=json.dumps(asked), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def events_of(payload):
    return [] if payload is None else read_batch(payload).events


def make_chain(extra):
    chain = HashChain(bytes(16), 4, extra)
    chain.append(list(range(100, 112)))
    return [chain.block(index) for index in range(3)]


@pytest.mark.parametrize("version", VERSIONS)
def test_vllm_reads_what_is_written(version):
    extra = ExtraKeys("adapter", "fingerprint", "salt", (MediaSpan("image", 2, 6),))
    blocks = make_chain(extra)
    keys = tuple(block.key for block in blocks)
    writer, in_bytes = VllmEvents(4, dp_rank=3), VllmEvents(4, form=HashForm.BYTES)
    stored = Stored(TierKind.HOST, keys, tuple(blocks))
    payloads = [
        writer.write([stored, Removed(TierKind.HOST, keys[2:])], 12.25),
        writer.write([Cleared(TierKind.HOST)], 13.0),
        in_bytes.write([Stored(TierKind.DISK, keys[1:], tuple(blocks[1:]))], 14.0),
    ]
    worker = WorkerSchema(4, 2)
    salted = tuple(make_chain(ExtraKeys("adapter", "fingerprint", "salt")))
    worker.take([Stored(TierKind.HOST, tuple(block.key for block in salted), salted)])
    payloads.append(encode_batch(worker.changes(), 15.0, 2))
    first, cleared, named, whole = theirs(version, payloads)["decoded"]
    assert first[:2] == [12.25, 3]
    short = [int.from_bytes(key.hash, "big") & (2**64 - 1) for key in keys]
    told, removed = first[2]
    expected = {
        "type": "BlockStored", "block_hashes": short, "parent_block_hash": None, "token_ids": list(range(100, 112)),
        "block_size": 4, "lora_id": None, "medium": "CPU", "lora_name": "adapter", "group_idx": 0,
        "extra_keys": [["adapter", ["image", 2], "salt"], ["adapter", ["image", -2]], ["adapter"]],
    }  # fmt: skip
    assert expected.items() <= told.items()
    assert {
        "type": "BlockRemoved",
        "block_hashes": short[2:],
        "medium": "CPU",
        "group_idx": 0,
    }.items() <= removed.items()
    assert cleared == [13.0, 3, [{"type": "AllBlocksCleared"}]]
    ((on_disk),) = named[2]
    assert on_disk["block_hashes"] == [key.hash.hex() for key in keys[1:]]
    assert (on_disk["parent_block_hash"], on_disk["medium"]) == (keys[0].hash.hex(), "STORAGE")
    (both,) = whole[2]
    assert whole[:2] == [15.0, 2]
    assert (len(both["block_hashes"]), both["block_size"], both["token_ids"]) == (6, 2, list(range(100, 112)))
    assert (both["medium"], both["parent_block_hash"], both["lora_name"]) == (None, None, "adapter")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_vllm_writes_is_read(version):
    stored = {
        "block_hashes": [2**64 - 1, 7], "parent_block_hash": 5, "token_ids": [1, 2, 3, 4], "block_size": 2,
        "lora_id": 1, "medium": "GPU", "lora_name": "adapter", "extra_keys": [["adapter", ["image", 0]], None],
        "group_idx": 0, "kv_cache_spec_kind": "full_attention",
    }  # fmt: skip
    removed = {"block_hashes": [7], "medium": "GPU", "group_idx": 0}
    said = theirs(version, events=[("BlockStored", stored), ("BlockRemoved", removed), ("AllBlocksCleared", {})])
    message = read_message([b"topic", (258).to_bytes(8, "big"), bytes.fromhex(said["written"])])
    assert (message.number, message.batch.ts, message.batch.data_parallel_rank) == (258, 1.5, 1)
    told, gone, cleared = message.batch.events
    stored["extra_keys"] = [("adapter", ["image", 0]), None]
    assert told == BlockStored(**stored)
    assert (gone, cleared) == (BlockRemoved(**removed), AllBlocksCleared())


def test_a_replay_has_an_end():
    assert read_message([b"", b"", b"\xff" * 8, b""]) is None


def test_what_is_no_batch_is_refused():
    for payload in (b"", b"\x93nonsense", msgspec.msgpack.encode([1.0, [{"type": "BlockMoved"}]])):
        with pytest.raises(EventsError, match="not a batch of vLLM's events"):
            read_batch(payload)


class Reader:
    """What a subscriber knows: media → names."""

    def __init__(self):
        self.media = {medium: set() for medium in MEDIA.values()}
        self.n_told = Counter()

    def take(self, payload):
        for event in events_of(payload):
            match event:
                case BlockStored():
                    assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                    assert not self.media[event.medium] & set(event.block_hashes)
                    self.media[event.medium] |= set(event.block_hashes)
                case BlockRemoved():
                    assert set(event.block_hashes) <= self.media[event.medium]
                    self.media[event.medium] -= set(event.block_hashes)
                case AllBlocksCleared():
                    assert any(self.media.values())
                    self.media = {medium: set() for medium in self.media}


@given(st.lists(st.lists(st.tuples(facts, st.booleans()), max_size=3), max_size=12), st.booleans())
def test_a_reader_knows_which_medium_has_which_known_block(batches, is_alone):
    writer, reader, world = VllmEvents(BLOCK_TOKENS, is_alone=is_alone), Reader(), Tiers()
    for batch in batches:
        told = [Stored(f.tier, f.keys, (), f.volume) if isinstance(f, Stored) and hide else f for f, hide in batch]
        for fact in told:
            world.apply(fact)
            world.known &= world.names  # of what is nowhere the tokens are forgotten
        reader.take(writer.write(told, 0.0))
        expected = {medium: set() for medium in MEDIA.values()}
        for (tier, _), names in world.places.items():
            expected[MEDIA[tier]] |= {short_hash(name) for name in names & world.known}
        assert reader.media == expected


def test_a_medium_loses_a_block_with_its_last_volume():
    names = CHAINS[0][0].hashes[:1]
    keys = tuple(BLOCKS[name].key for name in names)
    writer = VllmEvents(BLOCK_TOKENS)
    assert len(events_of(writer.write([with_tokens(names, place) for place in (DISK, DISK_B, OBJECT)], 0.0))) == 1
    assert writer.write([Removed(TierKind.DISK, keys, "a"), Cleared(TierKind.OBJECT)], 0.0) is None
    assert events_of(writer.write([Removed(TierKind.DISK, keys, "b")], 0.0)) == [
        BlockRemoved([short_hash(names[0])], "STORAGE", 0)
    ]


def test_what_is_learnt_later_is_told_of_all_its_media():
    names = CHAINS[0][0].hashes
    writer = VllmEvents(BLOCK_TOKENS)
    assert writer.write([with_tokens(names, place, is_known=False) for place in (HOST, DISK)], 0.0) is None
    told = events_of(writer.learn([BLOCKS[name] for name in names], 0.0))
    assert [(event.medium, len(event.block_hashes)) for event in told] == [("CPU", 3), ("STORAGE", 3)]
    assert writer.learn([BLOCKS[name] for name in names], 0.0) is None


def test_a_stream_that_is_not_alone_takes_back_block_by_block():
    names = CHAINS[0][0].hashes
    writer = VllmEvents(BLOCK_TOKENS, is_alone=False)
    writer.write([with_tokens(names, HOST)], 0.0)
    (event,) = events_of(writer.write([Cleared(TierKind.HOST)], 0.0))
    assert event == BlockRemoved([short_hash(name) for name in names], "CPU", 0)


def test_chains_are_told_apart():
    one, other = make_blocks(2, seed=1, block_tokens=4), make_blocks(2, seed=2, block_tokens=4)
    blocks = (*one, *other)
    told = events_of(VllmEvents(4).write([Stored(TierKind.HOST, tuple(b.key for b in blocks), blocks)], 0.0))
    assert [(event.parent_block_hash, len(event.block_hashes)) for event in told] == [(None, 2), (None, 2)]


def test_a_block_in_pages_is_what_a_router_reads_from_its_engine():
    names = CHAINS[0][0].hashes
    keys = tuple(BLOCKS[name].key for name in names)
    writer, consolidator = (
        VllmEvents(BLOCK_TOKENS, page_tokens=ROUTER_TOKENS),
        Consolidator(BLOCK_TOKENS, ROUTER_TOKENS),
    )
    consolidator.take_facts([with_tokens(names, HOST)])
    written = writer.write([with_tokens(names[:2], HOST)], 0.0)
    assert consolidator.take_engine(read_batch(written)) == []  # they are the blocks that the facts tell
    assert events_of(writer.write([with_tokens(names[2:], HOST)], 0.0))[0].parent_block_hash == short_hash(names[1])
    (gone,) = consolidator.forget_tiers()
    assert len(gone.data.removed.block_hashes) == 2
    (gone,) = consolidator.take_engine(read_batch(writer.write([Removed(TierKind.HOST, keys[1:])], 0.0)))
    assert len(gone.data.removed.block_hashes) == 2
    (cleared,) = consolidator.take_engine(read_batch(writer.write([Cleared(TierKind.HOST)], 0.0)))
    assert len(cleared.data.removed.block_hashes) == 2


@pytest.mark.parametrize(("chain", "extra"), CHAINS[:3])
def test_adapters_and_salts_are_told_in_pages_too(chain, extra):
    stored = with_tokens(chain.hashes, HOST)
    payload = VllmEvents(BLOCK_TOKENS, page_tokens=ROUTER_TOKENS).write([stored], 0.0)
    (told,) = Consolidator(BLOCK_TOKENS, ROUTER_TOKENS).take_engine(read_batch(payload))
    assert [block.block_hash for block in told.data.stored.blocks] == [b.sequence_hash for b in routed(chain, extra)]


def test_in_pages_blocks_with_media_are_not_told():
    blocks = tuple(make_chain(ExtraKeys(media=(MediaSpan("image", 5, 6),))))
    stored = Stored(TierKind.HOST, tuple(block.key for block in blocks), blocks)
    told = events_of(VllmEvents(4, page_tokens=2).write([stored], 0.0))
    assert [(event.parent_block_hash is None, event.token_ids) for event in told] == [
        (True, [100, 101, 102, 103]), (False, [108, 109, 110, 111]),
    ]  # fmt: skip


def test_pages_that_do_not_divide_a_block_are_refused():
    with pytest.raises(ConfigError, match=r"\(48\) must divide layout\.block_tokens \(64\)"):
        VllmEvents(64, page_tokens=48)


def test_a_snapshot_is_what_was_told():
    writer, reader, late = VllmEvents(BLOCK_TOKENS), Reader(), Reader()
    late.media["GPU"] = {1}
    for chain, _ in CHAINS:
        reader.take(writer.write([with_tokens(chain.hashes, HOST), with_tokens(chain.hashes[:1], DISK)], 0.0))
    late.take(writer.snapshot(1.0))
    assert late.media == reader.media
    n_runs = len(events_of(writer.snapshot(1.0))) - 1
    assert n_runs < len(BLOCKS) + len(CHAINS)
