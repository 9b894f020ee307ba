"""Geometry, computed by hand."""

import pytest
from hypothesis import given

from tenuto.errors import ConfigError
from tenuto.memory.layout import Dtype, ExtentLayout, align_up, choose_block_tokens
from tenuto.testing.strategies import layouts

pytestmark = pytest.mark.unit

LLAMA_3_8B = ExtentLayout(64, (0, 32), (0, 8), 128, 128, Dtype.BFLOAT16)
SMOLLM2_135M = ExtentLayout(256, (0, 30), (0, 3), 64, 64, Dtype.BFLOAT16)
SMOLLM2_FLOAT32 = ExtentLayout(176, (0, 30), (0, 3), 64, 64, Dtype.FLOAT32)
DEEPSEEK_MLA = ExtentLayout(64, (0, 61), (0, 1), 576, 0, Dtype.BFLOAT16)


def numbers(layout: ExtentLayout) -> dict[str, int]:
    names = ("run_bytes", "segment_bytes", "sums_offset", "extra_offset", "header_bytes", "extent_bytes")
    return {name: getattr(layout, name) for name in names}


@pytest.mark.parametrize(
    ("layout", "run", "segment", "sums", "extra", "header", "extent"),
    [
        # 64 × 256 × 2; 8 runs; 128 + 256; + 8 × 32 × 8; one page; + 32 segments
        (LLAMA_3_8B, 32_768, 262_144, 384, 2_432, 4_096, 8_392_704),
        # 256 × 128 × 2; 3 runs = 48 pages; 128 + 1024; + 8 × 30 × 3
        (SMOLLM2_135M, 65_536, 196_608, 1_152, 1_872, 4_096, 5_902_336),
        # 176 × 128 × 4; 3 runs = 66 pages; 128 + 704; + 720
        (SMOLLM2_FLOAT32, 90_112, 270_336, 832, 1_552, 4_096, 8_114_176),
        # 64 × 576 × 2 = 18 pages; 128 + 256; + 8 × 61
        (DEEPSEEK_MLA, 73_728, 73_728, 384, 872, 4_096, 4_501_504),
    ],
    ids=["llama-3-8b", "smollm2", "smollm2-float32", "mla"],
)
def test_the_numbers_of_known_models(layout, run, segment, sums, extra, header, extent):
    assert list(numbers(layout).values()) == [run, segment, sums, extra, header, extent]


def test_a_rank_stores_its_layers_and_heads_only():
    half = ExtentLayout(64, (16, 32), (4, 8), 128, 128, Dtype.BFLOAT16)
    assert (half.n_layers, half.n_heads) == (16, 4)
    assert half.segment_bytes == LLAMA_3_8B.segment_bytes // 2
    assert half.layer_range(16) == (4_096, 4_096 + 131_072)
    assert half.layer_range(31) == (half.extent_bytes - 131_072, half.extent_bytes)


def test_many_runs_make_a_longer_header():
    wide = ExtentLayout(256, (0, 80), (0, 8), 128, 128, Dtype.BFLOAT16)
    assert wide.header_bytes == 8_192  # 128 + 1024 + 5120 + 256 = 6528


@given(layouts())
def test_every_part_is_page_aligned_and_they_follow_each_other(layout):
    ranges = [layout.layer_range(layer) for layer in range(*layout.layers)]
    starts = [layout.header_bytes, *(stop for _, stop in ranges)]
    assert [start for start, _ in ranges] == starts[:-1]
    assert starts[-1] == layout.extent_bytes
    assert all(start % 4096 == 0 for start in starts)
    assert layout.segment_bytes >= layout.n_heads * layout.run_bytes > layout.segment_bytes - 4096
    assert layout.extra_offset + 256 <= layout.header_bytes


@pytest.mark.parametrize(
    ("n", "alignment", "aligned"), [(0, 8, 0), (1, 8, 8), (8, 8, 8), (9, 8, 16), (4097, 4096, 8192)]
)
def test_aligning_up(n, alignment, aligned):
    assert align_up(n, alignment) == aligned


@pytest.mark.parametrize(
    ("wanted", "engine", "token_bytes", "chosen"),
    [
        (0, 16, 4096, 64),  # Llama-3-8B: exactly 256 KiB
        (0, 16, 768, 256),  # SmolLM2 in bfloat16: would be 342, at most 256
        (0, 16, 1536, 176),  # SmolLM2 in float32: 171, then a multiple of 16
        (0, 16, 1 << 20, 64),  # at least 64
        (0, 16, 1, 256),
        (0, 128, 4096, 128),  # a multiple of the engine's block
        (0, 48, 4096, 96),
        (0, 48, 1, 240),
        (0, 512, 4096, 512),  # an engine's block is never cut
        (0, 1, 2048, 128),
        (32, 16, 4096, 32),
        (16, 16, 1, 16),
        (1024, 16, 4096, 1024),
    ],
)
def test_tokens_per_block(wanted, engine, token_bytes, chosen):
    assert choose_block_tokens(wanted, engine, token_bytes) == chosen


@pytest.mark.parametrize(("wanted", "engine"), [(24, 16), (8, 16), (100, 64)])
def test_a_block_that_is_no_multiple_of_the_engines_is_refused_in_one_line(wanted, engine):
    with pytest.raises(
        ConfigError, match=rf"^layout\.block_tokens: {wanted} is not a multiple .* {engine} tokens"
    ) as e:
        choose_block_tokens(wanted, engine, 4096)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("dtype", "code", "itemsize"),
    [
        (Dtype.FLOAT32, 1, 4),
        (Dtype.FLOAT16, 2, 2),
        (Dtype.BFLOAT16, 3, 2),
        (Dtype.FLOAT8_E4M3FN, 4, 1),
        (Dtype.FLOAT8_E5M2, 5, 1),
        (Dtype.BYTES, 6, 1),
    ],
)
def test_dtype_codes_are_those_of_the_format_note(dtype, code, itemsize):
    assert (dtype.value, dtype.itemsize) == (code, itemsize)
    assert len(Dtype) == 6
