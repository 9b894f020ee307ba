"""The header, taken apart here by hand from docs/format.md: nothing of the codec is used to read it."""

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.testing.blocks import NAMESPACE, fill_extent
from tenuto.testing.strategies import extra_keys, layouts, token_ids
from tenuto.tokens import ExtraKeys, HashChain, MediaSpan, TokenBlock

pytestmark = pytest.mark.unit

LAYOUT = ExtentLayout(16, layers=(8, 10), heads=(4, 7), k_dim=8, v_dim=4, dtype=Dtype.BFLOAT16, group=3)


def block_of(layout: ExtentLayout, index: int = 1, extra: ExtraKeys | None = None) -> TokenBlock:
    chain = HashChain(NAMESPACE, layout.block_tokens, extra)
    chain.append(list(range(1000, 1000 + (index + 1) * layout.block_tokens)))
    return chain.block(index)


def sealed(layout: ExtentLayout, block: TokenBlock) -> memoryview:
    codec = ExtentCodec(layout, NAMESPACE)
    buffer = HostArena(1, layout.extent_bytes).slot(0)
    fill_extent(codec, buffer, block)
    codec.seal(buffer)
    return buffer


def u(buffer: memoryview, offset: int, size: int) -> int:
    """A little-endian unsigned integer."""
    return int.from_bytes(buffer[offset : offset + size], "little")


def test_every_field_is_where_the_format_note_says():
    block = block_of(LAYOUT)
    buffer = sealed(LAYOUT, block)
    assert bytes(buffer[0:8]) == b"TENUTOKV"
    assert u(buffer, 8, 2) == 1  # version
    assert u(buffer, 10, 2) == 3  # bfloat16
    assert u(buffer, 12, 4) == 4096  # header bytes
    assert bytes(buffer[24:40]) == NAMESPACE
    assert bytes(buffer[40:56]) == block.key.hash
    assert bytes(buffer[56:72]) == block.key.parent
    assert bytes(buffer[72:88]) == block.key.prefix
    assert u(buffer, 88, 4) == 1  # index in the chain
    assert u(buffer, 92, 2) == 3  # group
    assert u(buffer, 94, 2) == 0  # extra key bytes
    assert u(buffer, 96, 4) == 16  # tokens
    assert (u(buffer, 100, 2), u(buffer, 102, 2)) == (8, 10)  # layers
    assert (u(buffer, 104, 2), u(buffer, 106, 2)) == (4, 7)  # heads
    assert (u(buffer, 108, 4), u(buffer, 112, 4)) == (8, 4)  # K and V dims
    assert u(buffer, 116, 4) == 4096  # segment bytes
    assert bytes(buffer[120:128]) == bytes(8)
    assert struct.unpack("<16I", buffer[128:192]) == tuple(range(1016, 1032))
    assert bytes(buffer[192 + 8 * 6 : 4096]) == bytes(4096 - 240)  # zero to the end of the page


def test_sums_are_those_of_the_runs_where_the_format_note_says():
    buffer = sealed(LAYOUT, block_of(LAYOUT))
    run_bytes = 16 * (8 + 4) * 2
    for layer in range(2):
        for head in range(3):
            start = 4096 + layer * 4096 + head * run_bytes
            expected = xxhash.xxh3_64_intdigest(bytes(buffer[start : start + run_bytes]))
            assert u(buffer, 192 + 8 * (layer * 3 + head), 8) == expected


def test_the_header_sum_covers_the_header_with_its_own_field_zero():
    buffer = sealed(LAYOUT, block_of(LAYOUT))
    header = bytearray(buffer[:4096])
    header[16:24] = bytes(8)
    assert u(buffer, 16, 8) == xxhash.xxh3_64_intdigest(bytes(header))


def test_a_header_is_not_sealed_before_it_is_sealed():
    codec = ExtentCodec(LAYOUT, NAMESPACE)
    buffer = HostArena(1, LAYOUT.extent_bytes).slot(0)
    fill_extent(codec, buffer, block_of(LAYOUT))
    assert u(buffer, 16, 8) == 0


def test_extra_keys_stand_behind_the_sums():
    block = block_of(LAYOUT, extra=ExtraKeys("sql", "f00d", media=(MediaSpan("cafe", 17, 20),)))
    buffer = sealed(LAYOUT, block)
    assert u(buffer, 94, 2) == len(block.extra) > 0
    assert bytes(buffer[240 : 240 + len(block.extra)]) == block.extra


@pytest.mark.parametrize(("n_bytes", "is_kept"), [(256, True), (257, False)])
def test_extra_keys_too_long_for_the_header_are_left_out_and_said_to_be(n_bytes, is_kept):
    block = block_of(LAYOUT)
    long = TokenBlock(block.key, 1, block.token_bytes, b"x" * n_bytes)
    buffer = sealed(LAYOUT, long)
    assert u(buffer, 94, 2) == (n_bytes if is_kept else 65535)
    assert bytes(buffer[240:496]) == (b"x" * 256 if is_kept else bytes(256))
    codec = ExtentCodec(LAYOUT, NAMESPACE)
    codec.verify(buffer, long.key.hash)
    assert codec.read_block(buffer).extra == (long.extra if is_kept else b"")


@given(st.data(), layouts())
def test_what_was_written_is_read_back_and_verifies(data, layout):
    extra = data.draw(extra_keys(2 * layout.block_tokens))
    chain = HashChain(NAMESPACE, layout.block_tokens, extra)
    chain.append(data.draw(token_ids(2 * layout.block_tokens, 2 * layout.block_tokens)))
    block = chain.block(data.draw(st.integers(0, 1)))
    buffer = sealed(layout, block)
    codec = ExtentCodec(layout, NAMESPACE)
    codec.verify(buffer, block.key.hash)
    assert codec.read_block(buffer) == block


def test_a_slot_used_again_has_nothing_left_of_the_old_header():
    codec = ExtentCodec(LAYOUT, NAMESPACE)
    buffer = HostArena(1, LAYOUT.extent_bytes).slot(0)
    fill_extent(codec, buffer, block_of(LAYOUT, extra=ExtraKeys("sql", "f00d")))
    codec.seal(buffer)
    codec.write_header(buffer, block_of(LAYOUT, index=0))
    fresh = HostArena(1, LAYOUT.extent_bytes).slot(0)
    codec.write_header(fresh, block_of(LAYOUT, index=0))
    assert bytes(buffer[:4096]) == bytes(fresh[:4096])
