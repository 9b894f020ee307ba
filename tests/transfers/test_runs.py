"""What lies in one run both in the engine and in an extent, against every row by itself."""

import numpy as np
import pytest

from tenuto.memory.layout import Dtype
from tenuto.memory.paged import PagedKV
from tenuto.memory.pages import PageRun
from tenuto.testing.kvshapes import ARRANGEMENTS, MLA_ARRANGEMENTS, SHAPES, Shape, cases, random_truth
from tenuto.transfers.lanes.runs import ContiguousRuns, contiguous_bytes

pytestmark = pytest.mark.unit

N_PAGES = 8  # of the manager's
DIM = 64
WHOLE = "NB_NL_TWO_NH_BS_HS"  # all layers of a page together, K before V
PACKED = "vllm-hnd"


def shape(n_layers, page_tokens, block_tokens, n_heads=1, v_dim=DIM, kernel_page_tokens=0):
    return Shape(n_layers, n_heads, DIM, v_dim, page_tokens, block_tokens, Dtype.BYTES, kernel_page_tokens)


def memory(shape, name):
    arrangement = (ARRANGEMENTS | MLA_ARRANGEMENTS)[name]
    tensors = arrangement.tensors(random_truth(shape, N_PAGES), shape.dtype)
    return PagedKV(tensors, shape.layout, shape.page_tokens, arrangement.kv_format)


def assert_all_rows_go_where_they_belong(kv):
    layout, per_block = kv.layout, kv.layout.block_tokens // kv.page_tokens
    size = contiguous_bytes(kv)
    runs = [PageRun(tuple(range(8 - per_block, 8))), PageRun(tuple(range(per_block)), first=per_block - 1)]
    payloads = np.array([1 << 20, 1 << 30], np.uint64)
    engine, host = ContiguousRuns(kv).pairs(runs, payloads)
    found = [
        (int(e) + at, int(h) + at) for e, h in zip(engine, host, strict=True) for at in range(0, size, kv.row_bytes)
    ]
    plane_bytes = layout.block_tokens * kv.row_bytes
    expected = {
        (
            kv.addresses[layer][plane] + (page * kv.pages_ratio + part) * kv.page_stride
            + head * kv.head_stride + token * kv.token_stride,
            int(payload) + layer * layout.segment_bytes + (head * kv.n_planes + plane) * plane_bytes
            + ((number * kv.pages_ratio + part) * kv.kernel_page_tokens + token) * kv.row_bytes,
        )
        for run, payload in zip(runs, payloads, strict=True)
        for number, page in enumerate(run.pages) if number >= run.first
        for part in range(kv.pages_ratio)
        for layer in range(layout.n_layers) for head in range(layout.n_heads)
        for plane in range(kv.n_planes) for token in range(kv.kernel_page_tokens)
    }  # fmt: skip
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("shape", "name", "size"),
    [
        (shape(2, 32, 32), WHOLE, 2 * 2 * 32 * DIM),  # a page is an extent's payload
        (shape(2, 16, 32), WHOLE, 16 * DIM),  # of two pages, each brings tokens only
        (shape(3, 16, 16), WHOLE, 2 * 16 * DIM),  # the layers of an extent are padded
        (shape(2, 32, 32, n_heads=2), WHOLE, 32 * DIM),  # K and V lie the other way round than heads
        (shape(2, 32, 32, kernel_page_tokens=8), WHOLE, 8 * DIM),  # four of the kernels' pages are one
        (shape(2, 16, 32, n_heads=2), PACKED, DIM),  # K and V of a token are neighbours, in an extent they are not
        (shape(2, 16, 32, n_heads=2, kernel_page_tokens=4), PACKED, DIM),
        (shape(2, 64, 64, v_dim=0), "NL_X_NB_BS_HS", 64 * DIM),  # one latent: a layer of a page is a segment
        (shape(2, 16, 64, v_dim=0), "NL_X_NB_BS_HS", 16 * DIM),
        (shape(2, 64, 64, v_dim=0, kernel_page_tokens=16), "NL_X_NB_BS_HS", 16 * DIM),
        (shape(2, 64, 64, v_dim=0), "vllm-mla-block-major", 2 * 64 * DIM),
        (shape(3, 32, 32, v_dim=0), "vllm-mla-block-major", 32 * DIM),  # padded again
    ],
)
def test_the_largest_run_is_found_and_all_rows_go_where_they_belong(shape, name, size):
    kv = memory(shape, name)
    assert contiguous_bytes(kv) == size
    assert_all_rows_go_where_they_belong(kv)


@pytest.mark.parametrize(("shape", "name"), sorted({(shape, name) for shape, name, _ in cases()}))
def test_all_rows_go_where_they_belong_in_every_arrangement(shape, name):
    assert_all_rows_go_where_they_belong(memory(SHAPES[shape], name))
