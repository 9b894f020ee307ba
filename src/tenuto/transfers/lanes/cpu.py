"""An engine on the CPU: copies are made at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from tenuto.memory.paged import ArenaView, PagedKV
from tenuto.memory.pages import PageRun
from tenuto.traces import span
from tenuto.transfers.lanes.device import LANDED, Landing, Layers, Mark


class CpuDevice:
    """Engine pages and host slots in one memory."""

    def __init__(self, paged: PagedKV, arena: ArenaView) -> None:
        self._paged = paged
        self._arena = arena

    def gather(self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers | None = None) -> Landing:
        """Copy pages into host slots."""
        with self._span("gather", len(runs), layers):
            self._paged.gather(runs, self._arena, slots, layers)
        return LANDED

    def settle(self) -> None:
        """Gathers end at once."""

    def mark(self) -> Mark:
        """Computing ends before anything else is called."""

    def scatter(
        self,
        runs: Sequence[PageRun],
        slots: Sequence[int],
        after: Mark,  # noqa: ARG002
        layers: Layers | None = None,
    ) -> Landing:
        """Copy host slots into pages."""
        with self._span("scatter", len(runs), layers):
            self._paged.scatter(runs, self._arena, slots, layers)
        return LANDED

    def _span(self, name: str, n_blocks: int, layers: Layers | None) -> AbstractContextManager[None]:
        layout = self._paged.layout
        start, stop = layers or (0, layout.n_layers)
        layer = start if stop - start == 1 else None
        return span(name, layer=layer, n_bytes=n_blocks * (stop - start) * layout.segment_bytes)
