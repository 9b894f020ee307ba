"""Facts into groups of events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import msgspec

from tenuto.events.batch import TIERS, Group, Kind
from tenuto.pools.facts import Cleared, Fact, Removed, Stored, TierKind
from tenuto.tokens import BlockKey

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


class _Head(NamedTuple):
    kind: Kind
    tier: TierKind
    volume: str
    lora: str = ""


_Keys = tuple[BlockKey, ...]


def n_events_of(fact: Fact | Lost) -> int:
    """How many numbers a fact takes."""
    return len(fact.keys) if isinstance(fact, Stored | Removed) else 1


def group_facts(
    facts: Iterable[Fact | Lost], shape: BlockShape, most_events: int
) -> Iterator[tuple[tuple[Group, ...], int]]:
    """The groups of each batch, of at most `most_events`, and how many events they are."""
    groups: list[Group] = []
    n = 0
    for head, parts in groupby((run for fact in facts for run in _runs(fact)), key=lambda run: run[0]):
        if head.kind > Kind.REMOVED:
            for _, what in parts:
                lost = what.n_events if isinstance(what, Lost) else shape.block_bytes
                groups.append(_group(head, shape, (), lost))
                n += 1
        else:
            keys = [key for _, some in parts if isinstance(some, tuple) for key in some]
            at = 0
            while at < len(keys):
                part = keys[at : at + most_events - n]
                groups.append(_group(head, shape, part))
                n += len(part)
                at += len(part)
                if n >= most_events:
                    yield tuple(groups), n
                    groups, n = [], 0
        if n >= most_events:
            yield tuple(groups), n
            groups, n = [], 0
    if groups:
        yield tuple(groups), n


def _group(head: _Head, shape: BlockShape, keys: Iterable[BlockKey], block_bytes: int | None = None) -> Group:
    hashes, parents, prefixes = zip(*keys, strict=True) if keys else ((), (), ())
    return Group(
        int(head.kind), _NUMBERS[head.tier], head.volume, shape.block_bytes if block_bytes is None else block_bytes,
        shape.block_tokens, shape.kv_group, head.lora, {}, b"".join(hashes), b"".join(parents), b"".join(prefixes),
    )  # fmt: skip


def _runs(fact: Fact | Lost) -> Iterator[tuple[_Head, _Keys | Lost]]:
    match fact:
        case Stored():
            if any(block.extra for block in fact.blocks):
                loras = [_lora_of(block.extra) for block in fact.blocks]
                at = 0
                for lora, some in groupby(loras):
                    n = sum(1 for _ in some)
                    yield _Head(Kind.STORED, fact.tier, fact.volume, lora), fact.keys[at : at + n]
                    at += n
            else:
                yield _Head(Kind.STORED, fact.tier, fact.volume), fact.keys
        case Removed():
            yield _Head(Kind.REMOVED, fact.tier, fact.volume), fact.keys
        case Cleared():
            yield _Head(Kind.CLEARED, fact.tier, fact.volume), ()
        case Lost():
            yield _Head(Kind.LOST, TierKind.DEVICE, ""), fact


def _lora_of(extra: bytes) -> str:
    """The adapter's name in a block's extra keys."""
    keys: list[list[str | int]] = msgspec.msgpack.decode(extra, type=list[list[str | int]]) if extra else []
    return next((str(key[1]) for key in keys if key[0] == "lora"), "")
