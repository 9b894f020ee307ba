"""Where engine pages and extents are contiguous in the same order, so that one copy moves many rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tenuto.memory.driver import CudaDriver
from tenuto.memory.paged import PagedKV
from tenuto.memory.pages import PageRun

Addresses = npt.NDArray[np.uint64]


def queue_copies(driver: CudaDriver, targets: Addresses, sources: Addresses, n_bytes: int, stream: int) -> None:
    """Queue copies of so many bytes each, perhaps none, in no order among themselves."""
    if len(targets):
        driver.copy(targets, sources, np.full(len(targets), n_bytes, dtype=np.uint64), stream)


def contiguous_bytes(kv: PagedKV, *, is_within_layer: bool = False) -> int:
    """The largest piece of a page, or of one layer of it, in one run and order both in the engine and in a payload."""
    layout = kv.layout
    plane_bytes = layout.block_tokens * kv.row_bytes
    steps = {after - before for before, after in itertools.pairwise(kv.bases)}
    layer_step = steps.pop() if len(steps) == 1 else 0
    # (how many, distance in the engine, distance in the payload), from the row outwards
    axes = [(kv.kernel_page_tokens, kv.token_stride, kv.row_bytes)]
    if kv.pages_per_block == 1:
        axes += [
            (kv.n_planes, kv.plane_stride, plane_bytes),
            (layout.n_heads, kv.head_stride, kv.n_planes * plane_bytes),
        ]
        if not is_within_layer:
            axes.append((layout.n_layers, layer_step, layout.segment_bytes))
    size = kv.row_bytes
    for count, in_engine, in_payload in axes:
        if count > 1 and not in_engine == in_payload == size:
            break
        size *= count
    return size


class ContiguousRuns:
    """The pieces of `contiguous_bytes` that a page consists of, in the order of layers."""

    def __init__(self, kv: PagedKV, *, is_within_layer: bool = False) -> None:
        layout = kv.layout
        self._kv = kv
        self.run_bytes = contiguous_bytes(kv, is_within_layer=is_within_layer)
        n_tokens = kv.kernel_page_tokens
        rows = itertools.product(range(layout.n_layers), range(layout.n_heads), range(kv.n_planes), range(n_tokens))
        plane_bytes = layout.block_tokens * kv.row_bytes
        pieces = [
            (
                kv.addresses[layer][plane] + head * kv.head_stride + token * kv.token_stride,
                layer * layout.segment_bytes + (head * kv.n_planes + plane) * plane_bytes + token * kv.row_bytes,
            )
            for layer, head, plane, token in itertools.islice(rows, 0, None, self.run_bytes // kv.row_bytes)
        ]
        self._in_page_0, self._in_payload = np.asarray(pieces, dtype=np.int64).T

    def pairs(
        self, runs: Sequence[PageRun], payloads: Addresses, layers: tuple[int, int] | None = None
    ) -> tuple[Addresses, Addresses]:
        """(engine addresses, host addresses) of all pieces of these blocks, whose payloads lie at `payloads`.

        Of some layers only where pieces lie within layers.
        """
        n_layers = self._kv.layout.n_layers
        start, stop = (at * len(self._in_page_0) // n_layers for at in layers or (0, n_layers))
        pages, first = self._kv.page_table(runs)
        at = np.arange(pages.shape[1])
        block, page = np.nonzero(at >= first[:, None])
        host = payloads[block].astype(np.int64) + page * (self._kv.kernel_page_tokens * self._kv.row_bytes)
        engine = pages[block, page].astype(np.int64) * self._kv.page_stride
        pairs = engine[:, None] + self._in_page_0[start:stop], host[:, None] + self._in_payload[start:stop]
        return pairs[0].ravel().astype(np.uint64), pairs[1].ravel().astype(np.uint64)
