"""Lives of blocks in tiers and engines, and what follows from them by sets alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tenuto.events.wire import RouterBlock, Scope, router_blocks
from tenuto.pools.facts import Cleared, Fact, Removed, Stored, TierKind
from tenuto.testing.blocks import NAMESPACE
from tenuto.tokens import ExtraKeys, HashChain, TokenBlock

BLOCK_TOKENS, ROUTER_TOKENS = 8, 4
PLACES = [(TierKind.HOST, ""), (TierKind.DISK, "a"), (TierKind.DISK, "b"), (TierKind.OBJECT, "")]

KINDS = [bytes([kind]) * 4 * BLOCK_TOKENS for kind in (1, 2)]
PROMPTS = [[first, second, third] for first in KINDS for second in KINDS for third in KINDS]
EXTRAS = [ExtraKeys(), ExtraKeys("adapter", "fingerprint"), ExtraKeys(salt="salt")]


def chain_of(kinds: Sequence[bytes], extra: ExtraKeys) -> HashChain:
    chain = HashChain(NAMESPACE, BLOCK_TOKENS, extra)
    chain.append_bytes(b"".join(kinds))
    return chain


CHAINS = [(chain_of(kinds, extra), extra) for kinds in PROMPTS for extra in EXTRAS]
"""Prompts of three blocks that share beginnings."""

BLOCKS: dict[bytes, TokenBlock] = {
    chain.hashes[index]: chain.block(index) for chain, _ in CHAINS for index in range(len(chain.hashes))
}
NAMES = sorted(BLOCKS)


def routed(chain: HashChain, extra: ExtraKeys) -> list[RouterBlock]:
    """The blocks of a router for this prompt."""
    tokens = b"".join(chain.block(index).token_bytes for index in range(len(chain.hashes)))
    return router_blocks(tokens, ROUTER_TOKENS, Scope(extra.lora_name, extra.salt))


ROUTED: dict[bytes, list[RouterBlock]] = {}
"""Of each block of ours, those of a router."""
for _chain, _extra in CHAINS:
    _all, _n = routed(_chain, _extra), BLOCK_TOKENS // ROUTER_TOKENS
    for _index, _name in enumerate(_chain.hashes):
        ROUTED[_name] = _all[_index * _n : (_index + 1) * _n]

ALL_ROUTED = {block.sequence_hash: block for blocks in ROUTED.values() for block in blocks}


def reachable(held: set[int]) -> set[int]:
    """Of these sequence hashes, those with all before them."""

    def is_reachable(block: RouterBlock) -> bool:
        return block.sequence_hash in held and (block.parent is None or is_reachable(ALL_ROUTED[block.parent]))

    return {key for key in held if is_reachable(ALL_ROUTED[key])}


def match_length(chain: HashChain, extra: ExtraKeys, held: set[int]) -> int:
    """Blocks of a router from the beginning of the prompt that are held."""
    length = 0
    for block in routed(chain, extra):
        if block.sequence_hash not in held:
            break
        length += 1
    return length


@dataclass
class Tiers:
    """Tiers as sets of names; which names' tokens were told while they were somewhere, and whose chain is known."""

    places: dict[tuple[TierKind, str], set[bytes]] = field(default_factory=lambda: {place: set() for place in PLACES})
    known: set[bytes] = field(default_factory=set)
    chained: set[bytes] = field(default_factory=set)

    def apply(self, fact: Fact) -> None:
        place = self.places.get((fact.tier, fact.volume))
        match fact:
            case Stored():
                place.update(key.hash for key in fact.keys)
                self.known.update(block.key.hash for block in fact.blocks)
            case Removed():
                place.difference_update(key.hash for key in fact.keys)
            case Cleared():
                for (tier, volume), names in self.places.items():
                    if tier is fact.tier and fact.volume in ("", volume):
                        names.clear()
        self._chain()

    def learn(self, names: Sequence[bytes]) -> None:
        """The tokens of these are told, of those that are somewhere."""
        self.known |= self.names & set(names)
        self._chain()

    def _chain(self) -> None:
        for name in sorted(self.names & self.known, key=lambda name: BLOCKS[name].index):
            if BLOCKS[name].index == 0 or BLOCKS[name].key.parent in self.chained:
                self.chained.add(name)

    @property
    def names(self) -> set[bytes]:
        return set().union(*self.places.values())

    def held(self) -> set[int]:
        """Sequence hashes of what is somewhere, where those before it have been, too."""
        return {block.sequence_hash for name in self.names & self.chained for block in ROUTED[name]}


def with_tokens(names: Sequence[bytes], place: tuple[TierKind, str], *, is_known: bool = True) -> Stored:
    blocks = tuple(BLOCKS[name] for name in names)
    return Stored(place[0], tuple(block.key for block in blocks), blocks if is_known else (), place[1])


_names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
_chained = st.sampled_from(CHAINS).map(lambda chained: list(chained[0].hashes))
_places = st.sampled_from(PLACES)

stores = st.builds(with_tokens, st.one_of(_chained, _names), _places)
removals = st.builds(
    lambda names, place: Removed(place[0], tuple(BLOCKS[name].key for name in names), place[1]), _names, _places
)
clears = st.builds(lambda place, whole: Cleared(place[0], "" if whole else place[1]), _places, st.booleans())
facts = st.one_of(stores, stores, removals, clears)
"""Facts as pools tell them, and repetitions of what is so already."""


def bits(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)
