"""Chained block hashes, computed as a request grows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, NewType

from tenuto.tokens.extra import ExtraKeys

BlockHash = NewType("BlockHash", bytes)
"""16 bytes: SHA-256 cut to 128 bits over parent, token ids and extra keys."""

HASH_BYTES = 16
TOKEN_BYTES = 4

_TOKEN = "I"
assert array(_TOKEN).itemsize == TOKEN_BYTES


class BlockKey(NamedTuple):
    """A block's name and place: `parent` is the block before (or the namespace), `prefix` the chain's first."""

    hash: BlockHash
    parent: BlockHash
    prefix: BlockHash


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """A full block: its key, its index in the chain, its token ids (little-endian uint32) and extra keys."""

    key: BlockKey
    index: int
    token_bytes: bytes
    extra: bytes = b""


class HashChain:
    """The blocks of one growing token sequence.

    `root` is the namespace digest. Appending is incremental: each token is hashed once.
    Identity is defined in docs/format.md.
    """

    __slots__ = ("_block_bytes", "_extra", "_tokens", "block_tokens", "hashes", "root")

    def __init__(self, root: bytes, block_tokens: int, extra: ExtraKeys | None = None) -> None:
        self.root = BlockHash(root)
        self.block_tokens = block_tokens
        self.hashes: list[BlockHash] = []
        """The hashes of the full blocks so far, in order."""
        self._block_bytes = block_tokens * TOKEN_BYTES
        self._extra = extra or ExtraKeys()
        self._tokens = bytearray()

    def __len__(self) -> int:
        """Tokens appended so far."""
        return len(self._tokens) // TOKEN_BYTES

    def append(self, token_ids: Sequence[int]) -> None:
        """Append token ids (0 ≤ id < 2³², else `OverflowError`) and hash the blocks they complete."""
        self._tokens += array(_TOKEN, token_ids).tobytes()
        self._hash_new()

    def append_bytes(self, token_bytes: bytes) -> None:
        """Append token ids given as little-endian uint32."""
        self._tokens += token_bytes
        self._hash_new()

    def _hash_new(self) -> None:
        step = self._block_bytes
        hashes = self.hashes
        parent = hashes[-1] if hashes else self.root
        start, end = len(hashes) * step, len(self._tokens)
        if end - start < step:
            return
        data = bytes(memoryview(self._tokens)[start:end])
        if self._extra.is_empty:
            for at in range(0, len(data) - step + 1, step):
                parent = BlockHash(sha256(parent + data[at : at + step]).digest()[:HASH_BYTES])
                hashes.append(parent)
            return
        for at in range(0, len(data) - step + 1, step):
            parent = hash_block(parent, data[at : at + step], self._extra_at(len(hashes)))
            hashes.append(parent)

    def _extra_at(self, index: int) -> bytes:
        start = index * self.block_tokens
        return self._extra.encode(start, start + self.block_tokens)

    def key(self, index: int) -> BlockKey:
        """The key of full block `index`."""
        hashes = self.hashes
        return BlockKey(hashes[index], hashes[index - 1] if index else self.root, hashes[0])

    def block(self, index: int) -> TokenBlock:
        """Full block `index`, with its tokens."""
        start = index * self._block_bytes
        tokens = bytes(self._tokens[start : start + self._block_bytes])
        return TokenBlock(self.key(index), index, tokens, self._extra_at(index))


def hash_block(parent: bytes, token_bytes: bytes, extra: bytes = b"") -> BlockHash:
    """The hash of one block; see docs/format.md."""
    return BlockHash(sha256(parent + token_bytes + extra).digest()[:HASH_BYTES])
