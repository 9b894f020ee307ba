"""What lies in one run both in the engine and in an extent, against every row by itself."""

import numpy as np
import pytest
import torch

from tenuto.memory.formats import KNOWN_FORMATS
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.memory.paged import PagedKV
from tenuto.memory.pages import PageRun
from tenuto.transfers.lanes.runs import ContiguousRuns, contiguous_bytes

pytestmark = pytest.mark.unit

N_PAGES = 8


def whole(n_layers, page_tokens, block_tokens, n_heads=1, dim=64):
    """All layers of a page together, K before V."""
    layout = ExtentLayout(block_tokens, (0, n_layers), (0, n_heads), dim, dim, Dtype.BYTES)
    tensor = torch.zeros((N_PAGES, n_layers, 2, n_heads, page_tokens, dim), dtype=torch.uint8)
    return PagedKV([tensor], layout, page_tokens, KNOWN_FORMATS["NB_NL_TWO_NH_BS_HS"])


def packed(n_heads, page_tokens, block_tokens, dim=64):
    layout = ExtentLayout(block_tokens, (0, 2), (0, n_heads), dim, dim, Dtype.BYTES)
    tensors = [torch.zeros((N_PAGES, n_heads, page_tokens, 2 * dim), dtype=torch.uint8) for _ in range(2)]
    return PagedKV(tensors, layout, page_tokens, KNOWN_FORMATS["NL_X_NB_NH_BS_CS"])


@pytest.mark.parametrize(
    ("kv", "size"),
    [
        (whole(2, 32, 32), 2 * 2 * 32 * 64),  # a page is an extent's payload
        (whole(2, 16, 32), 16 * 64),  # of two pages, each brings tokens only
        (whole(3, 16, 16), 2 * 16 * 64),  # the layers of an extent are padded
        (whole(2, 32, 32, n_heads=2), 32 * 64),  # K and V lie the other way round than heads
        (packed(2, 16, 32), 64),  # K and V of a token are neighbours, in an extent they are not
    ],
)
def test_the_largest_run_is_found_and_all_rows_go_where_they_belong(kv, size):
    assert contiguous_bytes(kv) == size
    layout, per_block = kv.layout, kv.layout.block_tokens // kv.page_tokens
    runs = [PageRun(tuple(range(5, 5 + per_block))), PageRun(tuple(range(per_block)), first=per_block - 1)]
    payloads = np.array([1 << 20, 1 << 30], np.uint64)
    engine, host = ContiguousRuns(kv).pairs(runs, payloads)
    found = {
        (int(e) + at, int(h) + at) for e, h in zip(engine, host, strict=True) for at in range(0, size, kv.row_bytes)
    }
    plane_bytes = layout.block_tokens * kv.row_bytes
    expected = {
        (
            kv.addresses[layer][plane] + page * kv.page_stride + head * kv.head_stride + token * kv.token_stride,
            int(payload) + layer * layout.segment_bytes + (head * 2 + plane) * plane_bytes
            + (number * kv.page_tokens + token) * kv.row_bytes,
        )
        for run, payload in zip(runs, payloads, strict=True)
        for number, page in enumerate(run.pages) if number >= run.first
        for layer in range(layout.n_layers) for head in range(layout.n_heads)
        for plane in range(2) for token in range(kv.page_tokens)
    }  # fmt: skip
    assert found == expected
