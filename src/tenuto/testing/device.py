"""An engine's paged memory without an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tenuto.memory.arena import HostArena
from tenuto.memory.layout import ExtentLayout
from tenuto.memory.pages import PageRun
from tenuto.transfers.lanes import LANDED, Landing
from tenuto.transfers.lanes.device import Layers, Mark

Bytes = npt.NDArray[np.uint8]


class FakeDevice:
    """A `transfers.lanes.Device` of bytes: `pages`, random at first. Raises `ValueError` where K and V differ in size.

    It is written straight from docs/format.md and shares no code with `PagedKV`.
    """

    def __init__(self, arena: HostArena, layout: ExtentLayout, page_tokens: int, n_pages: int, seed: int = 0) -> None:
        if layout.k_dim != layout.v_dim:
            raise ValueError("K and V must have one size here")
        dim_bytes = layout.k_dim * layout.dtype.itemsize
        shape = (n_pages, layout.n_layers, layout.n_heads, 2, page_tokens, dim_bytes)
        self.pages: Bytes = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
        """uint8 ``(pages, layers, heads, 2, page_tokens, bytes of a dim)``, K before V."""
        self._arena = arena
        self._layout = layout
        self._page_tokens = page_tokens

    def gather(self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers | None = None) -> Landing:
        """See `transfers.lanes.Device`."""
        for page, host in self._pairs(runs, slots, layers):
            host[...] = page
        return LANDED

    def settle(self) -> None:
        """See `transfers.lanes.Device`."""

    def mark(self) -> Mark:
        """See `transfers.lanes.Device`."""

    def scatter(
        self,
        runs: Sequence[PageRun],
        slots: Sequence[int],
        after: Mark = None,  # noqa: ARG002
        layers: Layers | None = None,
    ) -> Landing:
        """See `transfers.lanes.Device`."""
        for page, host in self._pairs(runs, slots, layers):
            page[...] = host
        return LANDED

    def clear(self) -> None:
        """Make every byte zero."""
        self.pages[...] = 0

    def _pairs(
        self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers | None
    ) -> Iterator[tuple[Bytes, Bytes]]:
        """(one layer of a page, its part of a host slot)."""
        layout = self._layout
        for run, slot in zip(runs, slots, strict=True):
            extent = np.frombuffer(self._arena.slot(slot), np.uint8)
            for layer in range(*(layers or (0, layout.n_layers))):
                start = layout.header_bytes + layer * layout.segment_bytes
                segment = extent[start : start + layout.n_heads * layout.run_bytes]
                heads = segment.reshape(layout.n_heads, 2, layout.block_tokens, -1)
                for at in range(run.first, len(run.pages)):
                    tokens = slice(at * self._page_tokens, (at + 1) * self._page_tokens)
                    yield self.pages[run.pages[at], layer], heads[:, :, tokens]
