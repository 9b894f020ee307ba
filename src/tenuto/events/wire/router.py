"""How routers name blocks: hashes of tokens, and chains of them.

Prior art: the hashes of NVIDIA Dynamo's KV router (`ai-dynamo/dynamo`, `lib/kv-router` and `lib/kv-hashing`), which
routers and engines must compute alike. All are xxh3-64. A block's *tokens hash* is over its token ids (little-endian
uint32), seeded by the request's adapter and salt; its *sequence hash* is that of the chain up to it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from tenuto.tokens.chain import TOKEN_BYTES

ROUTER_SEED = 1337
"""Of every hash, before adapter and salt are added."""

SALT_PREFIX = "dynamo-cache-salt:"
"""Dynamo's workers put this before a request's cache salt when they hand it to vLLM; its routers hash without it."""

_UINT64 = (1 << 64) - 1
_pack_pair = struct.Struct("<QQ").pack


class Scope(NamedTuple):
    """What all blocks of a request have in common besides tokens: the name of its adapter, and its cache salt."""

    lora_name: str = ""
    salt: str = ""

    @property
    def seed(self) -> int:
        """That of its tokens hashes."""
        return chain_seed(*self)

    @property
    def bare_salt(self) -> str:
        """The salt as routers know it."""
        return self.salt.removeprefix(SALT_PREFIX)


NO_SCOPE = Scope()


class RouterBlock(NamedTuple):
    """One block of a router: its sequence hash, that of its tokens, and the sequence hash of the block before it."""

    sequence_hash: int
    tokens_hash: int
    parent: int | None
    """None: it is the first of its chain."""
    token_bytes: bytes
    """Its token ids, little-endian uint32."""
    scope: Scope = NO_SCOPE


def chain_seed(lora_name: str = "", salt: str = "") -> int:
    """The seed of all tokens hashes of a request with this adapter and cache salt."""
    seed = ROUTER_SEED
    if lora_name:
        seed += xxh3_64_intdigest(lora_name.encode())
    if namespace := salt.removeprefix(SALT_PREFIX):
        seed += xxh3_64_intdigest(namespace.encode(), 1)
    return seed & _UINT64


def tokens_hashes(token_bytes: bytes, block_tokens: int, seed: int = ROUTER_SEED) -> list[int]:
    """The hashes of the full blocks of `block_tokens` tokens; a partial one at the end has none."""
    step = block_tokens * TOKEN_BYTES
    return [xxh3_64_intdigest(token_bytes[at : at + step], seed) for at in range(0, len(token_bytes) - step + 1, step)]


def router_blocks(
    token_bytes: bytes, block_tokens: int, scope: Scope = NO_SCOPE, parent: int | None = None
) -> list[RouterBlock]:
    """The full blocks of `block_tokens` tokens behind the block of sequence hash `parent`."""
    blocks: list[RouterBlock] = []
    seed, step = scope.seed, block_tokens * TOKEN_BYTES
    for at in range(0, len(token_bytes) - step + 1, step):
        tokens = token_bytes[at : at + step]
        tokens_hash = xxh3_64_intdigest(tokens, seed)
        is_first = parent is None
        sequence_hash = tokens_hash if is_first else xxh3_64_intdigest(_pack_pair(parent, tokens_hash), ROUTER_SEED)
        blocks.append(RouterBlock(sequence_hash, tokens_hash, parent, tokens, scope))
        parent = sequence_hash
    return blocks
