"""What goes over the wire: docs/events.md, byte by byte."""

import msgspec
import pytest

from tenuto.errors import EventsError
from tenuto.events import Batch, Group, Index, Kind, Part, Source, decode, encode
from tenuto.events.batch import Event
from tenuto.events.grouping import BlockShape, Lost, group_facts
from tenuto.pools.facts import Cleared, Removed, Stored, TierKind, Used
from tenuto.tokens import BlockHash, BlockKey, ExtraKeys, HashChain
from tests.events.events_rig import DISK, HOST, SHAPE, SOURCE, make_keys

pytestmark = pytest.mark.unit

STREAM = bytes(range(8))


def counted(*numbers: int) -> tuple[BlockKey, ...]:
    """Keys of one byte, sixteen times."""
    return tuple(BlockKey(*(BlockHash(bytes([n + i]) * 16) for i in range(3))) for n in numbers)


def batch_of(facts, shape=SHAPE, first=1) -> Batch:
    ((groups, _),) = group_facts(facts, shape, 1000)
    return Batch(STREAM, first, 1_700_000_000_000, SOURCE, groups)


GOLDEN = (
    "9601c4080001020304050607"  # 6 elements: 1, the stream,
    "07cf0000018bcfe56800"  # first = 7, the time,
    "94a46e6f6465a6776f726b657203c41077777777777777777777777777777777"  # the source,
    "92"  # two groups
    "9b0001a0ce0080000040" + "00a080c410" + "01" * 16 + "c410" + "02" * 16 + "c410" + "03" * 16
    + "9b0202a476" "6f6c32ce0080000040" + "00a080c400c400c400"
)  # fmt: skip


def test_a_batch_is_written_as_it_was_when_the_version_was_made():
    source = Source("node", "worker", 3, b"w" * 16)
    facts = [Stored(HOST, counted(1)), Cleared(DISK, "vol2")]
    ((groups, n),) = group_facts(facts, BlockShape(8 << 20, 64), 1000)
    batch = Batch(STREAM, 7, 1_700_000_000_000, source, groups)
    assert encode(batch).hex() == GOLDEN
    assert decode(bytes.fromhex(GOLDEN)) == batch
    assert (n, batch.n_events) == (2, 2)


def test_a_snapshots_part_comes_back_as_one():
    part = Part(STREAM, 12, 0, True, SOURCE, batch_of([Stored(HOST, make_keys(3))]).groups)
    assert decode(encode(part)) == part


def test_elements_of_later_versions_are_ignored():
    raw = msgspec.msgpack.decode(encode(batch_of([Stored(HOST, make_keys(2))])))
    raw[4].append("more")
    raw[5][0].append({"and": "more"})
    assert decode(msgspec.msgpack.encode([*raw, 1, 2])).n_events == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw.__setitem__(0, 9),
        lambda raw: raw.__setitem__(1, b"short"),
        lambda raw: raw.__setitem__(2, 0),
        lambda raw: raw.__setitem__(2, 2**63 - 2),
        lambda raw: raw[5][0].__setitem__(0, -1),
        lambda raw: raw[5][0].__setitem__(1, 4),
        lambda raw: raw[5][0].__setitem__(8, bytes(17)),
        lambda raw: raw[5][0].__setitem__(9, b""),
        lambda raw: raw.clear(),
    ],
)
def test_what_is_not_of_this_version_is_refused(spoil):
    raw = msgspec.msgpack.decode(encode(batch_of([Stored(HOST, make_keys(2))])))
    spoil(raw)
    with pytest.raises(EventsError):
        decode(msgspec.msgpack.encode(raw))


@pytest.mark.parametrize(("as_of", "part"), [(-1, 0), (2**63 - 1, 0), (0, -1)])
def test_a_snapshots_numbers_are_numbers_of_events(as_of, part):
    assert decode(encode(Part(STREAM, 0, 0, True, SOURCE, ()))).as_of == 0
    with pytest.raises(EventsError):
        decode(encode(Part(STREAM, as_of, part, True, SOURCE, ())))


def test_elements_nested_too_deep_are_refused():
    data = encode(batch_of([Stored(HOST, make_keys(2))]))
    assert decode(bytes([data[0] + 1]) + data[1:] + b"\x91" * 9 + b"\xc0").n_events == 2
    with pytest.raises(EventsError, match="not a message"):
        decode(bytes([data[0] + 1]) + data[1:] + b"\x91" * 200_000 + b"\xc0")


@pytest.mark.parametrize(("n_blocks", "n_numbers"), [(3, 3), (0, 1)])
def test_kinds_of_later_versions_are_left_out_and_counted(n_blocks, n_numbers):
    keys = make_keys(5)
    raw = msgspec.msgpack.decode(encode(batch_of([Stored(HOST, keys[:3]), Stored(DISK, keys[3:])])))
    raw[5][0][0], raw[5][0][1] = 99, 77
    raw[5][0][8:] = [column[: 16 * n_blocks] for column in raw[5][0][8:]]
    batch = decode(msgspec.msgpack.encode(raw))
    assert isinstance(batch, Batch)
    assert batch.n_events == n_numbers + 2
    assert [event.number for event in batch.events()] == [1 + n_numbers, 2 + n_numbers]
    index = Index()
    index.take(batch)
    assert len(index) == 2


def test_uses_are_events_that_an_index_takes_nothing_from():
    keys = make_keys(4)
    batch = batch_of([Stored(DISK, keys), Used(DISK, keys[:2]), Used(DISK, keys[2:3]), Used(HOST, keys[3:])])
    assert [(group.kind, group.n_events) for group in batch.groups] == [(0, 4), (4, 3), (4, 1)]
    assert [event.hash for event in batch.events()][4:] == [key.hash for key in keys]
    index = Index()
    index.take(batch)
    assert len(index) == 4


def test_noise_is_refused():
    with pytest.raises(EventsError):
        decode(b"\xc1nothing")


def test_events_are_numbered_from_the_first_on():
    keys = make_keys(2)
    batch = batch_of([Stored(HOST, keys), Removed(DISK, keys[:1], "v"), Cleared(HOST)], first=5)
    assert list(batch.events()) == [
        Event(5, Kind.STORED, HOST, "", 8 << 20, 64, 0, "", *keys[0]),
        Event(6, Kind.STORED, HOST, "", 8 << 20, 64, 0, "", *keys[1]),
        Event(7, Kind.REMOVED, DISK, "v", 8 << 20, 64, 0, "", *keys[0]),
        Event(8, Kind.CLEARED, HOST, "", 8 << 20, 64, 0, "", b"", b"", b""),
    ]


@pytest.mark.parametrize("n", range(9))
def test_a_batch_without_its_first_events_is_the_rest(n):
    keys = make_keys(3)
    batch = batch_of([Stored(HOST, keys), Cleared(HOST), Removed(DISK, keys), Stored(DISK, keys[:1])])
    assert list(batch.after(n).events()) == list(batch.events())[n:]


# -- facts into groups ------------------------------------------------------------------------------


def groups_of(facts, most=1000) -> list[tuple[tuple[Group, ...], int]]:
    return list(group_facts(facts, SHAPE, most))


def test_facts_that_have_all_but_their_blocks_in_common_are_one_group():
    keys = make_keys(4)
    ((groups, n),) = groups_of([Stored(HOST, keys[:1]), Stored(HOST, keys[1:]), Stored(DISK, keys)])
    assert [(group.kind, group.tier, group.n_events) for group in groups] == [(0, 1, 4), (0, 2, 4)]
    assert groups[0].hashes == b"".join(key.hash for key in keys)
    assert groups[0].parents == b"".join(key.parent for key in keys)
    assert groups[0].prefixes == b"".join(key.prefix for key in keys)
    assert n == 8


def test_whole_tiers_are_groups_of_their_own():
    ((groups, n),) = groups_of([Cleared(HOST), Cleared(HOST), Cleared(DISK), Removed(HOST, make_keys(1))])
    assert [(group.kind, group.tier) for group in groups] == [(2, 1), (2, 1), (2, 2), (1, 1)]
    assert n == 4


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 10])
def test_a_large_fact_is_cut_into_batches(most):
    keys = make_keys(10)
    batches = groups_of([Cleared(HOST), Stored(HOST, keys), Removed(HOST, keys[:3])], most)
    assert all(n <= most and n == sum(group.n_events for group in groups) for groups, n in batches)
    assert all(n == most for _, n in batches[:-1])
    flat = [event for groups, _ in batches for group in groups for event in group.events(0)]
    assert [event.hash for event in flat] == [b"", *(key.hash for key in keys), *(key.hash for key in keys[:3])]


def test_a_fact_of_no_blocks_is_no_event():
    assert groups_of([Stored(HOST, ()), Removed(DISK, ())]) == []


def test_what_was_lost_says_how_many():
    ((groups, n),) = groups_of([Stored(HOST, make_keys(1)), Lost(77), Stored(HOST, make_keys(1))])
    assert [(group.kind, group.block_bytes) for group in groups] == [(0, 8 << 20), (3, 77), (0, 8 << 20)]
    assert n == 3


def test_an_adapters_blocks_are_a_group_with_its_name():
    chains = []
    for extra in (ExtraKeys(), ExtraKeys("adapter", "0" * 64), ExtraKeys(salt="salt")):
        chain = HashChain(bytes(16), 4, extra)
        chain.append(range(8))
        chains.append(chain)
    blocks = tuple(chain.block(i) for chain in chains for i in range(2))
    fact = Stored(TierKind.HOST, tuple(block.key for block in blocks), blocks)
    ((groups, n),) = groups_of([fact])
    assert [(group.lora, group.n_events) for group in groups] == [("", 2), ("adapter", 2), ("", 2)]
    assert n == 6
