"""An engine on the CPU: copies are made at once."""

from __future__ import annotations

from collections.abc import Sequence

from tenuto.memory.paged import ArenaView, PagedKV
from tenuto.memory.pages import PageRun
from tenuto.transfers.lanes.device import LANDED, Landing, Layers, Mark


class CpuDevice:
    """Engine pages and host slots in one memory."""

    def __init__(self, paged: PagedKV, arena: ArenaView) -> None:
        self._paged = paged
        self._arena = arena

    def gather(self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers | None = None) -> Landing:
        """Copy pages into host slots."""
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
        self._paged.scatter(runs, self._arena, slots, layers)
        return LANDED
