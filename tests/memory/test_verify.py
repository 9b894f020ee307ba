"""What a read refuses. Covered by sums: the whole header, and every run. Not covered: the padding behind the last run
of a layer segment, which nobody reads."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Cause, StoreError
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import Dtype
from tenuto.testing.blocks import NAMESPACE, SMALL, fill_extent, make_blocks

pytestmark = pytest.mark.unit

CODEC = ExtentCodec(SMALL, NAMESPACE)
BLOCK, OTHER = make_blocks(2)
USED = SMALL.n_heads * SMALL.run_bytes


def sealed() -> memoryview:
    buffer = HostArena(1, SMALL.extent_bytes).slot(0)
    fill_extent(CODEC, buffer, BLOCK)
    CODEC.seal(buffer)
    return buffer


GOOD = bytes(sealed())


def refused(buffer, codec: ExtentCodec = CODEC, expected: bytes = BLOCK.key.hash) -> str:
    with pytest.raises(StoreError) as raised:
        codec.verify(memoryview(buffer), expected)
    assert raised.value.cause is Cause.CORRUPT
    return str(raised.value)


def test_an_extent_verifies_as_it_was_sealed():
    CODEC.verify(memoryview(GOOD), BLOCK.key.hash)
    CODEC.verify_header(memoryview(GOOD), BLOCK.key.hash)


def test_sealing_again_gives_the_same_bytes():
    buffer = memoryview(bytearray(GOOD))
    CODEC.seal(buffer)
    assert bytes(buffer) == GOOD


@given(st.integers(0, SMALL.header_bytes * 8 - 1))
def test_any_flipped_bit_of_the_header_is_found_also_in_its_tail(bit):
    buffer = bytearray(GOOD)
    buffer[bit // 8] ^= 1 << bit % 8
    assert refused(buffer) == "header sum does not match"


@given(st.integers(0, SMALL.n_layers - 1), st.integers(0, USED * 8 - 1))
def test_any_flipped_bit_of_a_run_is_found_and_named(layer, bit):
    buffer = bytearray(GOOD)
    buffer[SMALL.layer_range(layer)[0] + bit // 8] ^= 1 << bit % 8
    head = bit // 8 // SMALL.run_bytes
    assert refused(buffer) == f"sum of layer {layer}, head {head} does not match"
    CODEC.verify_header(memoryview(buffer), BLOCK.key.hash)  # the header says nothing of it


@given(st.integers(0, SMALL.n_layers - 1), st.integers(USED, SMALL.segment_bytes - 1))
def test_the_padding_of_a_segment_is_not_covered(layer, offset):
    buffer = bytearray(GOOD)
    buffer[SMALL.layer_range(layer)[0] + offset] ^= 0xFF
    CODEC.verify(memoryview(buffer), BLOCK.key.hash)


def test_runs_that_changed_places_are_found():
    buffer = bytearray(GOOD)
    start, run = SMALL.layer_range(0)[0], SMALL.run_bytes
    buffer[start : start + 2 * run] = GOOD[start + run : start + 2 * run] + GOOD[start : start + run]
    refused(buffer)


@pytest.mark.parametrize("n_bytes", [0, 512, 4096, 4097, SMALL.extent_bytes - 4096])
def test_an_extent_that_was_only_written_in_part_is_refused(n_bytes):
    refused(bytearray(GOOD[:n_bytes].ljust(SMALL.extent_bytes, b"\0")))


def test_zeros_are_no_extent():
    refused(bytearray(SMALL.extent_bytes))


def test_an_extent_that_was_not_sealed_is_refused():
    buffer = HostArena(1, SMALL.extent_bytes).slot(0)
    fill_extent(CODEC, buffer, BLOCK)
    refused(buffer)


def test_the_block_must_be_the_expected_one():
    assert refused(GOOD, expected=OTHER.key.hash) == "header is of another block"
    assert CODEC.is_block(memoryview(GOOD), BLOCK.key.hash)
    assert not CODEC.is_block(memoryview(GOOD), OTHER.key.hash)


def test_the_namespace_must_be_the_expected_one():
    assert refused(GOOD, ExtentCodec(SMALL, bytes(16))) == "header is of another block"


@pytest.mark.parametrize(
    "change",
    [
        {"layers": (1, 3)},
        {"heads": (1, 3)},
        {"dtype": Dtype.BFLOAT16},  # the same size
        {"k_dim": 4, "v_dim": 12},  # the same run
        {"block_tokens": 8, "k_dim": 16, "v_dim": 16},
    ],
    ids=" ".join,
)
def test_the_geometry_must_be_the_expected_one(change):
    other = ExtentCodec(replace(SMALL, **change), NAMESPACE)
    assert other.layout.extent_bytes == SMALL.extent_bytes
    assert refused(GOOD, other) == "header is of another geometry"


@pytest.mark.parametrize("offset", [0, 8], ids=["magic", "version"])
def test_another_magic_or_version_is_refused_even_with_a_right_sum(offset):
    buffer = bytearray(GOOD)
    buffer[offset] ^= 2
    buffer[16:24] = CODEC._header_sum(memoryview(buffer)).to_bytes(8, "little")
    assert refused(buffer) == "header is of another block"
