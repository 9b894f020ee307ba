"""vLLM's KV events: facts as its `KVEventBatch`, and the messages of its own publisher read.

Prior art: `vllm/distributed/kv_events.py`. What is written is read by vLLM 0.27.1 and 0.32.0, and what those write is
read here: events are maps, unknown fields are skipped.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Any

import msgspec

from tenuto.errors import EventsError
from tenuto.events.wire.facts import ExtraParts, pages_of, place_of, read_extra
from tenuto.events.wire.places import Places
from tenuto.pools.facts import Cleared, Fact, Removed, Stored, TierKind, Used
from tenuto.tokens import BlockHash, BlockKey, TokenBlock

EngineHash = int | bytes
"""A block's name in vLLM's events: the last 64 bits of its hash, or all of it."""

ExtraKey = Any
"""An adapter's name or a salt (text), (a media identifier, where it begins), or a digest of embeddings (bytes)."""


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, frozen=True):
    """Blocks of `block_size` tokens, each the parent of the next, are in `medium` from now on."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[ExtraKey, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None
    """Of all these blocks. vLLM does not have it, and reads over it; Dynamo takes it."""


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, frozen=True):
    """Blocks are not in `medium` any more."""

    block_hashes: list[EngineHash]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, frozen=True):
    """The publisher has nothing any more, in no medium."""


EngineEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EngineBatch(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """One message's events: seconds since 1970, events in order, the publisher's data-parallel rank."""

    ts: float
    events: list[EngineEvent]
    data_parallel_rank: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """An event of a snapshot, of so many blocks, which is made when it is sent: together they are large."""

    n_blocks: int
    make: Callable[[], EngineEvent]


class HashForm(Enum):
    """How a block is named in vLLM's events."""

    INT = "int"  #: the last 64 bits of its hash, big-endian: vLLM's default, and all that most of its readers take
    BYTES = "bytes"  #: all 16 bytes: what vLLM sends under VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0


@dataclass(frozen=True, slots=True)
class EngineMessage:
    """A message of vLLM's ZeroMQ publisher: its number, which grows by one, and its events."""

    number: int
    batch: EngineBatch


END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
"""In place of a message's number: nothing more was kept."""

_decoder = msgspec.msgpack.Decoder(EngineBatch)

MEDIA = {TierKind.DEVICE: "GPU", TierKind.HOST: "CPU", TierKind.DISK: "STORAGE", TierKind.OBJECT: "STORAGE"}
"""vLLM's name for each tier."""


def read_batch(payload: bytes) -> EngineBatch:
    """Read the events of one message (`EventsError` where they are none)."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise EventsError(f"not a batch of vLLM's events: {error}") from None


def read_message(frames: Sequence[bytes]) -> EngineMessage | None:
    """Read the last two of a message's frames, from the publisher or its replay: number (8 bytes, big-endian), events.

    None: the end of a replay.
    """
    number, payload = frames[-2:]
    if number == END_OF_REPLAY:
        return None
    return EngineMessage(int.from_bytes(number, "big"), read_batch(payload))


def encode_batch(events: Sequence[EngineEvent], time_s: float, dp_rank: int) -> bytes:
    """One message of these events, told at `time_s` since 1970."""
    return msgspec.msgpack.encode(EngineBatch(time_s, list(events), dp_rank))


def short_hash(block_hash: bytes) -> int:
    """The last 64 bits of a hash, big-endian, as vLLM shortens its own."""
    return int.from_bytes(block_hash[-8:], "big")


class VllmEvents:
    """Facts as vLLM's events, for one publisher: a block of ours is one of `block_tokens` tokens, named by its hash.

    With `page_tokens`, for readers who take blocks of the engine's own size alone (Dynamo's), it is several of those:
    the last is named by its hash, the others by hashes of it; then blocks with media are not told, since where in them
    which image ends is not in their keys.
    Only blocks whose tokens are known are told, and of those what becomes of them. A medium is told once, though it may
    be several volumes or tiers: disk and object store are both STORAGE. With `is_alone` a stream that has nothing left
    says so by `AllBlocksCleared`; without, since readers take that for the engine's blocks, too, by each block.
    The tokens of what is held are kept (4 bytes each).
    """

    def __init__(
        self,
        block_tokens: int,
        *,
        dp_rank: int = 0,
        form: HashForm = HashForm.INT,
        is_alone: bool = True,
        group: int = 0,
        page_tokens: int | None = None,
    ) -> None:
        page_tokens = page_tokens or block_tokens
        self._writer = _Writer(page_tokens, pages_of(block_tokens, page_tokens), form, group)
        self._dp_rank = dp_rank
        self._is_alone = is_alone
        self.places: Places[BlockHash] = Places()
        self._known: dict[BlockHash, TokenBlock] = {}
        self._told: dict[str, set[BlockHash]] = {medium: set() for medium in MEDIA.values()}

    def write(self, facts: Iterable[Fact], time_s: float) -> bytes | None:
        """One message of these facts, or None where they have nothing to tell. `time_s` is since 1970."""
        return self._message(self.take(facts), time_s)

    def learn(self, blocks: Iterable[TokenBlock], time_s: float) -> bytes | None:
        """One message of blocks whose tokens were not known when they were stored, or None."""
        return self._message(self.take_tokens(blocks), time_s)

    def snapshot(self, time_s: float) -> bytes:
        """One message of all that was told, for a reader that begins; if `is_alone`, behind an `AllBlocksCleared`."""
        events: list[EngineEvent] = [AllBlocksCleared()] if self._is_alone else []
        events += [part.make() for part in self.parts()]
        return encode_batch(events, time_s, self._dp_rank)

    def take(self, facts: Iterable[Fact]) -> list[EngineEvent]:
        """The events of these facts."""
        return [event for fact in facts for event in self._events_of(fact)]

    def take_tokens(self, blocks: Iterable[TokenBlock]) -> list[EngineEvent]:
        """The events of blocks whose tokens were not known when they were stored."""
        known = [block for block in blocks if block.key.hash in self.places]
        self._keep(known)
        return self._tell([block.key for block in known])

    def wants(self, name: BlockHash) -> bool:
        """Whether a block is somewhere, and its tokens are not known."""
        return name in self.places and name not in self._known

    def parts(self, most_blocks: int | None = None) -> list[SnapshotPart]:
        """All that was told, in events of `most_blocks` blocks of ours at most."""
        parts: list[SnapshotPart] = []
        for medium, told in self._told.items():
            blocks = sorted((self._known[name] for name in told), key=lambda block: (block.key.prefix, block.index))
            runs = _runs(blocks, most_blocks)
            parts += [SnapshotPart(len(run), partial(self._writer.stored, run, medium)) for run in runs]
        return parts

    @property
    def n_told(self) -> int:
        """Blocks of ours that were told and not taken back, in each medium."""
        return sum(map(len, self._told.values()))

    def _keep(self, blocks: Iterable[TokenBlock]) -> None:
        for block in blocks:
            if self._writer.n_pages == 1 or not read_extra(block.extra).media:
                self._known[block.key.hash] = block

    def _message(self, events: list[EngineEvent], time_s: float) -> bytes | None:
        return encode_batch(events, time_s, self._dp_rank) if events else None

    def _events_of(self, fact: Fact) -> list[EngineEvent]:
        place = place_of(fact)
        match fact:
            case Stored():
                for key in fact.keys:
                    self.places.add(key.hash, place)
                self._keep(fact.blocks)
                return self._tell(fact.keys)
            case Removed():
                for key in fact.keys:
                    self.places.discard(key.hash, place)
                return self._take_back([key.hash for key in fact.keys], MEDIA[fact.tier])
            case Cleared():
                return self._take_back(self.places.clear(*place), MEDIA[fact.tier], may_clear=self._is_alone)
            case Used():
                return []

    def _tell(self, keys: Sequence[BlockKey]) -> list[EngineEvent]:
        """Tell, medium by medium, of these blocks what is known and not told."""
        events: list[EngineEvent] = []
        for medium, told in self._told.items():
            new = [
                self._known[key.hash]
                for key in keys
                if key.hash in self._known and key.hash not in told and self._is_in(key.hash, medium)
            ]
            told.update(block.key.hash for block in new)
            events += [self._writer.stored(run, medium) for run in _runs(new)]
        return events

    def _take_back(self, names: Sequence[BlockHash], medium: str, *, may_clear: bool = False) -> list[EngineEvent]:
        """Take back what was told of these blocks, where it is no longer so."""
        had_any = any(self._told.values())
        gone = [name for name in names if name in self._told[medium] and not self._is_in(name, medium)]
        self._told[medium].difference_update(gone)
        for name in names:
            if name not in self.places:
                self._known.pop(name, None)
        if may_clear and had_any and not self.places:
            return [AllBlocksCleared()]
        names_gone = [page for name in gone for page in self._writer.pages(name)]
        return [BlockRemoved(names_gone, medium, self._writer.group)] if gone else []

    def _is_in(self, name: BlockHash, medium: str) -> bool:
        return any(self.places.is_in(name, tier.value) for tier, its in MEDIA.items() if its == medium)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Our blocks as vLLM's: each is `n_pages` of `page_tokens` tokens."""

    page_tokens: int
    n_pages: int
    form: HashForm
    group: int

    def stored(self, run: list[TokenBlock], medium: str) -> BlockStored:
        """The event of blocks that follow each other."""
        first, parts = run[0], [read_extra(block.extra) for block in run]
        keys = [key for part in parts for key in self._extra_keys(part)]
        return BlockStored(
            block_hashes=[page for block in run for page in self.pages(block.key.hash)],
            parent_block_hash=None if first.index == 0 else self._name(first.key.parent),
            token_ids=array("I", b"".join(block.token_bytes for block in run)).tolist(),
            block_size=self.page_tokens,
            lora_id=None,
            medium=medium,
            lora_name=parts[0].lora_name or None,
            extra_keys=keys if any(keys) else None,
            group_idx=self.group,
        )

    def pages(self, block_hash: BlockHash) -> list[EngineHash]:
        """The names of a block's pages, in order."""
        before = [_page_hash(block_hash, page) for page in range(self.n_pages - 1)]
        return [self._name(name) for name in (*before, block_hash)]

    def _extra_keys(self, parts: ExtraParts) -> list[tuple[ExtraKey, ...] | None]:
        first = tuple(key for key in (parts.lora_name, *parts.media, parts.salt) if key)
        others = (parts.lora_name,) if parts.lora_name else None
        return [first or None, *[others] * (self.n_pages - 1)]

    def _name(self, block_hash: bytes) -> EngineHash:
        return short_hash(block_hash) if self.form is HashForm.INT else bytes(block_hash)


def _page_hash(block_hash: bytes, page: int) -> bytes:
    return sha256(block_hash + page.to_bytes(2, "little")).digest()[: len(block_hash)]


def _runs(blocks: Sequence[TokenBlock], most: int | None = None) -> list[list[TokenBlock]]:
    """Blocks as chains of neighbours, of `most` at most."""
    runs = [[block] for block in blocks[:1]]
    for before, block in pairwise(blocks):
        if block.key.parent == before.key.hash and block.index and len(runs[-1]) != most:
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs
