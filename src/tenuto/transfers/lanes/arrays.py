"""Blocks in memory that the CPU reads and writes: copies are made at once, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tenuto.memory.arena import HostArena
from tenuto.memory.blockmemory import BlockMemory, Bytes
from tenuto.memory.pages import PageRun
from tenuto.traces import span
from tenuto.transfers.lanes.device import LANDED, Landing, Layers, Mark


class ArrayDevice:
    """A `Device` whose pages are the blocks of a `BlockMemory`, one page a block."""

    def __init__(self, memory: BlockMemory, arena: HostArena) -> None:
        self._layout = layout = memory.layout
        self._stacks = memory.stacks()
        extent = layout.extent()
        self._host: Bytes = np.lib.stride_tricks.as_strided(
            np.frombuffer(arena.view, np.uint8)[extent.header_bytes :],
            (arena.n_slots, layout.n_layers, layout.layer_bytes),
            (arena.extent_bytes, extent.segment_bytes, 1),
        )

    def gather(self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers | None = None) -> Landing:
        """Copy blocks into host slots."""
        with span("gather", n_bytes=self._n_bytes(runs, layers)):
            for block, host in self._pairs(runs, slots, layers):
                host[...] = block
        return LANDED

    def settle(self) -> None:
        """Gathers end at once."""

    def mark(self) -> Mark:
        """Computing ends before anything else is called."""

    def scatter(
        self,
        runs: Sequence[PageRun],
        slots: Sequence[int],
        after: Mark = None,  # noqa: ARG002
        layers: Layers | None = None,
    ) -> Landing:
        """Copy host slots into blocks."""
        with span("scatter", n_bytes=self._n_bytes(runs, layers)):
            for block, host in self._pairs(runs, slots, layers):
                block[...] = host
        return LANDED

    def _pairs(
        self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers | None
    ) -> Iterator[tuple[Bytes, Bytes]]:
        """(layers of a block, of a host slot), each (layers, layer_bytes)."""
        start, stop = layers or (0, self._layout.n_layers)
        for run, slot in zip(runs, slots, strict=True):
            (page,) = run.pages
            if run.first:  # nothing of it is to be loaded
                continue
            first = 0
            for stack in self._stacks:
                n_layers = stack.shape[1]
                low, high = max(start, first), min(stop, first + n_layers)
                if low < high:
                    yield stack[page, low - first : high - first], self._host[slot, low:high]
                first += n_layers

    def _n_bytes(self, runs: Sequence[PageRun], layers: Layers | None) -> int:
        start, stop = layers or (0, self._layout.n_layers)
        return len(runs) * (stop - start) * self._layout.layer_bytes
