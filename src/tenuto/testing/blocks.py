"""Blocks, chains and extents to test with: the same arguments always give the same bytes."""

from __future__ import annotations

from random import Random

from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.tokens import BlockKey, HashChain, TokenBlock

NAMESPACE = bytes(range(16))
"""A namespace digest."""

SMALL = ExtentLayout(block_tokens=16, layers=(0, 2), heads=(0, 2), k_dim=8, v_dim=8, dtype=Dtype.FLOAT16)
"""Extents of 12 KiB; every layer segment ends in padding."""


def make_chain(n_blocks: int, seed: int = 0, block_tokens: int = 16, root: bytes = NAMESPACE) -> HashChain:
    """A chain of full blocks; chains of other seeds share none."""
    chain = HashChain(root, block_tokens)
    chain.append([seed, *range(n_blocks * block_tokens - 1)] if n_blocks else [])
    return chain


def make_blocks(n_blocks: int, seed: int = 0, block_tokens: int = 16, root: bytes = NAMESPACE) -> list[TokenBlock]:
    """The blocks of `make_chain`."""
    chain = make_chain(n_blocks, seed, block_tokens, root)
    return [chain.block(index) for index in range(n_blocks)]


def make_keys(n_blocks: int, seed: int = 0) -> list[BlockKey]:
    """The keys of `make_chain`."""
    return [block.key for block in make_blocks(n_blocks, seed)]


def payload_of(layout: ExtentLayout, block: TokenBlock) -> bytes:
    """What `fill_extent` writes behind the header; other blocks get other bytes."""
    return Random(block.key.hash).randbytes(layout.payload_bytes)


def fill_extent(codec: ExtentCodec, buffer: memoryview, block: TokenBlock) -> None:
    """Make `buffer` the extent of `block`, not sealed."""
    codec.write_header(buffer, block)
    buffer[codec.layout.header_bytes :] = payload_of(codec.layout, block)
