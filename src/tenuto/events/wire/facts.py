"""Facts of our tiers, for a reader who wants token ids: what a block holds, and where which of them are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from tenuto.errors import ConfigError
from tenuto.events.wire.ledger import Content, Ledger, Sink
from tenuto.events.wire.places import Place, Places
from tenuto.events.wire.router import Scope
from tenuto.pools.facts import Cleared, Fact, Removed, Stored, TierKind, Used
from tenuto.tokens import BlockHash, BlockKey, TokenBlock


@dataclass(frozen=True, slots=True)
class ExtraParts:
    """The extra keys of one block, apart."""

    lora_name: str = ""
    salt: str = ""
    """Of the first block of a chain alone."""
    media: tuple[tuple[str, int], ...] = ()
    """(content hash, where its tokens begin in the block: before it, if negative)."""


NO_PARTS = ExtraParts()


def read_extra(extra: bytes) -> ExtraParts:
    """Take apart what `tenuto.tokens.ExtraKeys.encode` wrote."""
    if not extra:
        return NO_PARTS
    lora_name, salt, media = "", "", list[tuple[str, int]]()
    for kind, *values in msgspec.msgpack.decode(extra, type=list[tuple[str | int, ...]]):
        match kind, values:
            case "lora", [str(name), *_]:
                lora_name = name
            case "salt", [str(value)]:
                salt = value
            case "mm", [str(content), int(at)]:
                media.append((content, at))
            case _:
                raise ValueError(f"unknown extra key {kind!r}")
    return ExtraParts(lora_name, salt, tuple(media))


def place_of(fact: Fact) -> Place:
    """The place that a fact is about."""
    return fact.tier.value, fact.volume


def facts_since(places: Places[BlockHash], stored: Iterable[Stored]) -> list[Fact]:
    """What has become of the blocks in `places`, where `stored` is all there is now. Removed keys are but hashes."""
    facts: list[Fact] = []
    here: dict[Place, set[BlockHash]] = {}
    for fact in stored:
        here.setdefault(place_of(fact), set()).update(key.hash for key in fact.keys)
        facts.append(fact)
    for place in places.all():
        left = here.get(place, set())
        gone = [name for name in places.at(place) if name not in left]
        if gone:
            facts.append(Removed(TierKind(place[0]), tuple(BlockKey(name, name, name) for name in gone), place[1]))
    return facts


def pages_of(block_tokens: int, page_tokens: int) -> int:
    """How many pages of a reader's size a block of ours is (`ConfigError`: not a whole number of them)."""
    if page_tokens < 1 or block_tokens % page_tokens:
        raise ConfigError(
            f"a router's block size ({page_tokens}) must divide layout.block_tokens ({block_tokens}): "
            "use the engine's block size"
        )
    return block_tokens // page_tokens


class TierBlocks:
    """Tells `sink` which blocks of `router_tokens` tokens our tiers hold: in whichever of them, and once.

    `router_tokens` is the engine's own block size; `block_tokens` must be a multiple of it (`ConfigError`).
    A block is told when its tokens and those of all before it are known, from its fact or an earlier one, or from
    `learn`. Blocks with media are not told, and what stands on them neither: where in such a block which image ends is
    not in its keys.
    """

    def __init__(self, block_tokens: int, router_tokens: int, sink: Sink) -> None:
        pages_of(block_tokens, router_tokens)
        self.ledger: Ledger[BlockHash] = Ledger(router_tokens, sink)

    def take(self, facts: Iterable[Fact]) -> None:
        """Take in facts, in the order in which they became true."""
        ledger = self.ledger
        for fact in facts:
            place = place_of(fact)
            match fact:
                case Stored():
                    for key in fact.keys:
                        ledger.store(key.hash, place)
                    self.learn(fact.blocks)
                case Removed():
                    for key in fact.keys:
                        ledger.remove(key.hash, place)
                case Cleared():
                    ledger.clear(*place)
                case Used():
                    pass  # routers are told where blocks are

    def learn(self, blocks: Iterable[TokenBlock]) -> None:
        """Take in what blocks hold that were stored without it; of those that are nowhere, nothing is kept."""
        for block in blocks:
            if self.ledger.wants(block.key.hash):
                self.ledger.learn(_content(block))


def _content(block: TokenBlock) -> Content[BlockHash]:
    parts, key = read_extra(block.extra), block.key
    parent = None if block.index == 0 else key.parent
    scope = Scope(parts.lora_name, parts.salt)
    return Content(key.hash, parent, block.token_bytes, scope, is_opaque=bool(parts.media))
