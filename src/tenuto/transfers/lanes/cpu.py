"""An engine on the CPU: copies are made at once."""

from __future__ import annotations

from collections.abc import Sequence

from tenuto.memory.paged import ArenaView, PagedKV
from tenuto.memory.pages import PageRun
from tenuto.traces import span
from tenuto.transfers.lanes.device import LANDED, Landing, Mark


class CpuDevice:
    """Engine pages and host slots in one memory."""

    def __init__(self, paged: PagedKV, arena: ArenaView) -> None:
        self._paged = paged
        self._arena = arena

    def gather(self, runs: Sequence[PageRun], slots: Sequence[int]) -> Landing:
        """Copy pages into host slots."""
        with span("gather", n_bytes=len(runs) * self._paged.layout.payload_bytes):
            self._paged.gather(runs, self._arena, slots)
        return LANDED

    def settle(self) -> None:
        """Gathers end at once."""

    def mark(self) -> Mark:
        """Computing ends before anything else is called."""

    def scatter(self, runs: Sequence[PageRun], slots: Sequence[int], after: Mark) -> None:  # noqa: ARG002
        """Copy host slots into pages."""
        with span("scatter", n_bytes=len(runs) * self._paged.layout.payload_bytes):
            self._paged.scatter(runs, self._arena, slots)
