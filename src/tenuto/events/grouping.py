"""Facts into groups of events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import msgspec

from tenuto.events.batch import TIERS, Group, Kind
from tenuto.pools.facts import Cleared, Fact, Removed, Stored, Used
from tenuto.tokens import BlockKey

_STORED, _REMOVED, _USED = int(Kind.STORED), int(Kind.REMOVED), int(Kind.USED)
_OF_BLOCKS = (_STORED, _REMOVED, _USED)
_NUMBERS = {tier: number for number, tier in enumerate(TIERS)}


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What all blocks of a publisher have in common. `block_bytes`: of a block on all ranks."""

    block_bytes: int
    block_tokens: int
    kv_group: int = 0


@dataclass(slots=True)
class Lost:
    """Takes the place of `n_events` that there was no room for."""

    n_events: int = 0
    is_taken: bool = False


_Head = tuple[int, int, str, str]  # kind, tier, volume, lora
_Keys = Sequence[BlockKey]


def n_events_of(fact: Fact | Lost) -> int:
    """How many numbers a fact takes."""
    return len(fact.keys) if isinstance(fact, Stored | Removed | Used) else 1


def group_facts(
    facts: Iterable[Fact | Lost], shape: BlockShape, most_events: int
) -> Iterator[tuple[tuple[Group, ...], int]]:
    """The groups of each batch, of at most `most_events`, and how many events they are."""
    groups: list[Group] = []
    n = 0
    for head, keys, block_bytes in _merged(facts, shape.block_bytes):
        at = 0
        while at < max(1, len(keys)):
            if n >= most_events:
                yield tuple(groups), n
                groups, n = [], 0
            part = keys[at : at + most_events - n] if at or len(keys) > most_events - n else keys
            groups.append(_group(head, shape, block_bytes, part))
            n += len(part) or 1
            at += len(part) or 1
    if groups:
        yield tuple(groups), n


def _merged(facts: Iterable[Fact | Lost], block_bytes: int) -> Iterator[tuple[_Head, _Keys, int]]:
    """What has all but its blocks in common, together."""
    head: _Head | None = None
    parts: list[_Keys] = []
    for fact in facts:
        for of, keys in _runs(fact):
            if not keys and of[0] in _OF_BLOCKS:
                continue
            if parts and (of != head or not keys):
                assert head is not None
                yield head, _joined(parts), block_bytes
                parts = []
            if keys:
                head = of
                parts.append(keys)
            else:  # a whole tier, or what was lost
                yield of, (), fact.n_events if isinstance(fact, Lost) else block_bytes
    if parts and head is not None:
        yield head, _joined(parts), block_bytes


def _joined(parts: list[_Keys]) -> _Keys:
    return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))


def _runs(fact: Fact | Lost) -> Iterable[tuple[_Head, _Keys]]:
    if isinstance(fact, Stored):
        if any(block.extra for block in fact.blocks):
            return _runs_by_lora(fact)
        return (((_STORED, _NUMBERS[fact.tier], fact.volume, ""), fact.keys),)
    if isinstance(fact, Removed):
        return (((_REMOVED, _NUMBERS[fact.tier], fact.volume, ""), fact.keys),)
    if isinstance(fact, Used):
        return (((_USED, _NUMBERS[fact.tier], fact.volume, ""), fact.keys),)
    if isinstance(fact, Cleared):
        return (((int(Kind.CLEARED), _NUMBERS[fact.tier], fact.volume, ""), ()),)
    return (((int(Kind.LOST), 0, "", ""), ()),)


def _runs_by_lora(fact: Stored) -> Iterator[tuple[_Head, _Keys]]:
    at = 0
    for lora, some in groupby(_lora_of(block.extra) for block in fact.blocks):
        n = sum(1 for _ in some)
        yield (_STORED, _NUMBERS[fact.tier], fact.volume, lora), fact.keys[at : at + n]
        at += n


def _group(head: _Head, shape: BlockShape, block_bytes: int, keys: _Keys) -> Group:
    kind, tier, volume, lora = head
    hashes, parents, prefixes = zip(*keys, strict=True) if keys else ((), (), ())
    return Group(
        kind, tier, volume, block_bytes, shape.block_tokens, shape.kv_group, lora, {},
        b"".join(hashes), b"".join(parents), b"".join(prefixes),
    )  # fmt: skip


def _lora_of(extra: bytes) -> str:
    """The adapter's name in a block's extra keys."""
    keys: list[list[str | int]] = msgspec.msgpack.decode(extra, type=list[list[str | int]]) if extra else []
    return next((str(key[1]) for key in keys if key[0] == "lora"), "")
