"""What goes over the wire: batches of events, and parts of a snapshot. docs/events.md is the contract.

Columns, not rows: no Python object is made for a block on either side, unless somebody asks for `events`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from tenuto.errors import EventsError
from tenuto.pools.facts import TierKind

HASH_BYTES = 16
STREAM_BYTES = 8
_MOST_NUMBER = (1 << 63) - 1
"""Of an event: a question has room for no more, and -1 there is the end of an answer."""

TIERS = (TierKind.DEVICE, TierKind.HOST, TierKind.DISK, TierKind.OBJECT)
"""By their number on the wire."""


class Kind(IntEnum):
    """What became of the blocks of a group."""

    STORED = 0
    REMOVED = 1
    CLEARED = 2
    LOST = 3
    USED = 4


_OF_BLOCKS = frozenset({Kind.STORED, Kind.REMOVED, Kind.USED})
KINDS = frozenset(Kind)


class Source(msgspec.Struct, array_like=True, frozen=True):
    """Who publishes: node and worker by name, data-parallel rank; `namespace`: parent of every chain's first block."""

    node: str
    worker: str
    rank: int
    namespace: bytes

    @property
    def place(self) -> tuple[str, str, int]:
        """What stays the same when it is started again."""
        return self.node, self.worker, self.rank


@dataclass(frozen=True, slots=True)
class Event:
    """One block of a group, or a whole one that is cleared or lost: then its hashes are empty."""

    number: int
    kind: Kind
    tier: TierKind
    volume: str
    block_bytes: int
    block_tokens: int
    kv_group: int
    lora: str
    hash: bytes
    parent: bytes
    prefix: bytes


class Group(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive events that have all but their blocks in common; the last three have 16 bytes a block.

    `kind` may be one of a later version, which readers leave out, as `tier` then may be.
    """

    kind: int
    tier: int
    volume: str
    block_bytes: int
    block_tokens: int
    kv_group: int
    lora: str
    extra: dict[str, str]
    hashes: bytes
    parents: bytes
    prefixes: bytes

    @property
    def n_events(self) -> int:
        """How many numbers it takes; of a later version's kind: one a block, or one where it has none."""
        n_blocks = len(self.hashes) // HASH_BYTES
        return n_blocks if self.kind in _OF_BLOCKS else max(1, n_blocks)

    def after(self, n_events: int) -> Group:
        """The group without its first events."""
        at = n_events * HASH_BYTES
        return msgspec.structs.replace(
            self, hashes=self.hashes[at:], parents=self.parents[at:], prefixes=self.prefixes[at:]
        )

    def events(self, first: int) -> Iterator[Event]:
        """Its events, the first of which has this number; none of a kind that is not known."""
        if self.kind not in KINDS:
            return
        kind, tier = Kind(self.kind), TIERS[self.tier]
        shape = (self.volume, self.block_bytes, self.block_tokens, self.kv_group, self.lora)
        if kind not in _OF_BLOCKS:
            yield Event(first, kind, tier, *shape, b"", b"", b"")
            return
        columns = zip(cut(self.hashes), cut(self.parents), cut(self.prefixes), strict=True)
        for number, (block, parent, prefix) in enumerate(columns, first):
            yield Event(number, kind, tier, *shape, block, parent, prefix)


class Batch(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Consecutive events of one stream; without groups it is a heartbeat."""

    stream: bytes
    first: int
    time_ms: int
    source: Source
    groups: tuple[Group, ...]

    @property
    def n_events(self) -> int:
        """How many numbers it takes."""
        return sum(group.n_events for group in self.groups)

    def after(self, n_events: int) -> Batch:
        """The batch without its first events."""
        groups: list[Group] = []
        left = n_events
        for group in self.groups:
            if left >= group.n_events:
                left -= group.n_events
            else:
                groups.append(group.after(left) if left else group)
                left = 0
        return msgspec.structs.replace(self, first=self.first + n_events, groups=tuple(groups))

    def events(self) -> Iterator[Event]:
        """One object for each event."""
        number = self.first
        for group in self.groups:
            yield from group.events(number)
            number += group.n_events


class Part(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """A part of a snapshot: blocks that are there, as groups of kind STORED. Part 0 takes the place of all before."""

    stream: bytes
    as_of: int
    part: int
    is_last: bool
    source: Source
    groups: tuple[Group, ...]


Message = Batch | Part

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch | Part)


def encode(message: Message) -> bytes:
    """As it goes over the wire."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """What came over the wire. Raises `EventsError` for what is none of it."""
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:  # the latter for elements of later versions
        raise EventsError(f"not a message of the event stream, or of another version: {error}") from None
    if len(message.stream) != STREAM_BYTES:
        raise EventsError(f"a stream's name has {STREAM_BYTES} bytes, not {len(message.stream)}")
    for group in message.groups:
        n_bytes = len(group.hashes)
        if not (n_bytes == len(group.parents) == len(group.prefixes)) or n_bytes % HASH_BYTES:
            raise EventsError("a group's columns are not 16 bytes a block each")
        if group.kind < 0 or (group.kind in KINDS and not 0 <= group.tier < len(TIERS)):
            raise EventsError(f"no kind {group.kind}, or no tier {group.tier}, is known in this version")
    if isinstance(message, Batch):
        is_possible = 1 <= message.first <= _MOST_NUMBER - message.n_events
    else:
        is_possible = 0 <= message.as_of < _MOST_NUMBER and message.part >= 0
    if not is_possible:
        raise EventsError("a message's number is below 1, or has more than 63 bits")
    return message


def cut(column: bytes) -> list[bytes]:
    """The hashes of a column."""
    return [column[at : at + HASH_BYTES] for at in range(0, len(column), HASH_BYTES)]
