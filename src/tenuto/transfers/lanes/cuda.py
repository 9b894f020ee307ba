"""An engine on a GPU: staging rings, copy engines, and the order of streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from tenuto.errors import ConfigError
from tenuto.memory.arena import HostArena
from tenuto.memory.driver import CudaDriver
from tenuto.memory.kernels import BlockMover
from tenuto.memory.paged import PagedKV
from tenuto.memory.pages import PageRun
from tenuto.transfers.lanes.device import LANDED, Landing, Layers, Mark
from tenuto.transfers.lanes.ring import Ring
from tenuto.transfers.lanes.runs import Addresses, ContiguousRuns, contiguous_bytes, queue_copies
from tenuto.transfers.lanes.turns import Turns
from tenuto.transfers.lanes.waiter import Waiter

BATCH_RUN_BYTES = 512 << 10
"""From this size on, copies of single runs reach the wire's rate without a ring."""
_LOW = 0  # torch's lowest stream priority


@dataclass(frozen=True, slots=True)
class RingSizes:
    """Bytes of the rings and of their windows, and how many programs their kernels run on."""

    load_bytes: int
    store_bytes: int
    window_bytes: int
    load_programs: int
    store_programs: int


@dataclass(frozen=True, slots=True)
class _Flight:
    """Copies on their way."""

    device: torch.device
    waiter: Waiter
    ended: torch.cuda.Event
    after: torch.cuda.Event
    n_bytes: int
    queued_at: float

    @property
    def has_ended(self) -> bool:
        """Whether the bytes are there already."""
        return self.ended.query()

    def wait(self) -> None:
        """Until they are."""
        self.waiter.wait(self.ended, self.after, self.n_bytes, self.queued_at)

    def fence(self) -> None:
        """What the engine queues from now on comes after them."""
        torch.cuda.current_stream(self.device).wait_event(self.ended)


class CudaDevice:
    """Engine pages on a GPU, host slots in pinned memory.

    Order is made by events alone: a gather comes after what the engine has queued, what the engine queues after
    `settle` comes after the reading of every gather, a scatter comes after its mark, and a ring's window is used again
    when its kernel and its copy have ended. Raises `ConfigError` when the rings don't fit into the GPU's free memory.
    """

    def __init__(self, kv: PagedKV, arena: HostArena, sizes: RingSizes, driver: CudaDriver) -> None:
        self._device = kv.device
        self._read = torch.cuda.Event()  # the reading of all gathers so far
        self._is_settled = True
        self._waiters = Waiter(), Waiter()  # out, in
        self._layout = kv.layout
        host = np.arange(arena.n_slots, dtype=np.uint64) * np.uint64(arena.extent_bytes)
        host += np.uint64(arena.address(0) + kv.layout.header_bytes)
        if contiguous_bytes(kv) >= BATCH_RUN_BYTES:
            way: _Way = _Batch(kv, host, driver)
        else:
            _check_free(sizes, kv.layout.payload_bytes, kv.device)
            way = _Staged(kv, host, sizes, driver)
        self._way: _Way = way

    def gather(self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers | None = None) -> Landing:
        """Queue copies of pages into host slots, behind what the engine has queued."""
        if not runs:
            return LANDED
        layers = layers or (0, self._layout.n_layers)
        queued_at = self._waiters[0].now()
        computed = torch.cuda.Event(blocking=True)  # who waits for it sleeps
        computed.record(torch.cuda.current_stream(self._device))
        ended = torch.cuda.Event()
        self._is_settled = False
        with ExitStack() as undo:
            undo.callback(ended.synchronize)  # what was queued must not write host slots that others get then
            self._way.gather(runs, slots, layers, computed, self._read, ended)
            undo.pop_all()
        return self._flight(self._waiters[0], ended, computed, len(runs), layers, queued_at)

    def settle(self) -> None:
        """What the engine queues from now on comes after the reading of all gathers so far."""
        if not self._is_settled:
            torch.cuda.current_stream(self._device).wait_event(self._read)
            self._is_settled = True

    def mark(self) -> Mark:
        """All that the engine and our gathers have queued so far."""
        self.settle()
        queued = torch.cuda.Event(blocking=True)
        queued.record(torch.cuda.current_stream(self._device))
        return queued

    def scatter(
        self, runs: Sequence[PageRun], slots: Sequence[int], after: Mark, layers: Layers | None = None
    ) -> Landing:
        """Queue copies of host slots into pages, after the mark."""
        if not runs:
            return LANDED
        layers = layers or (0, self._layout.n_layers)
        queued_at, ended = self._waiters[1].now(), torch.cuda.Event()
        with ExitStack() as undo:
            undo.callback(ended.synchronize)  # what was queued must not touch pages that others get then
            self._way.scatter(runs, slots, layers, after, ended)
            undo.pop_all()
        return self._flight(self._waiters[1], ended, after, len(runs), layers, queued_at)

    def _flight(
        self, waiter: Waiter, ended: torch.cuda.Event, after: torch.cuda.Event, n_blocks: int, layers: Layers,
        queued_at: float,
    ) -> _Flight:  # fmt: skip
        n_bytes = n_blocks * (layers[1] - layers[0]) * self._layout.segment_bytes
        return _Flight(self._device, waiter, ended, after, n_bytes, queued_at)


class _Way(Protocol):
    """How copies are queued. `ended` is recorded behind them in any case."""

    def gather(
        self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers, after: torch.cuda.Event,
        read: torch.cuda.Event, ended: torch.cuda.Event,
    ) -> None: ...  # fmt: skip

    def scatter(
        self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers, after: torch.cuda.Event,
        ended: torch.cuda.Event,
    ) -> None: ...  # fmt: skip


class _Staged:
    """Through rings: a kernel puts pages into the order of extents, or back, and one copy a block crosses the wire."""

    def __init__(self, kv: PagedKV, host: Addresses, sizes: RingSizes, driver: CudaDriver) -> None:
        self._mover = BlockMover(kv)
        self._mover.warm_up()
        self._host = host
        self._segment_bytes = kv.layout.segment_bytes
        self._driver = driver
        self._sizes = sizes
        self._kv = kv
        self._out = Ring(sizes.store_bytes, sizes.window_bytes, kv.layout.payload_bytes, kv.device)
        self._in = Ring(sizes.load_bytes, sizes.window_bytes, kv.layout.payload_bytes, kv.device)
        self._gathering, self._scattering, self._copying_in = (
            torch.cuda.Stream(kv.device, priority=_LOW) for _ in range(3)
        )
        self._copying_out = Turns(kv.device, _LOW, driver)
        self._loading = threading.Lock()  # loads come from two lanes

    def gather(
        self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers, after: torch.cuda.Event,
        read: torch.cuda.Event, ended: torch.cuda.Event,
    ) -> None:  # fmt: skip
        with torch.cuda.stream(self._gathering):
            try:
                self._gathering.wait_event(after)
                host, row_bytes = self._rows(slots, layers)
                for at, stop in _cut(len(slots), self._out.window_bytes // row_bytes):
                    pages, _ = self._table(runs[at:stop])
                    window = self._out.take()
                    rows, addresses = window.rows(stop - at, row_bytes)
                    self._gathering.wait_event(window.emptied)
                    try:
                        self._mover.gather(pages, rows, self._sizes.store_programs, layers)
                        window.filled.record(self._gathering)
                        self._copying_out.copy(host[at:stop], addresses, row_bytes, window.filled)
                    finally:  # whatever was queued, who takes the window next comes after it
                        self._copying_out.record(window.emptied)
            finally:
                read.record(self._gathering)
                self._copying_out.record(ended)

    def scatter(
        self,
        runs: Sequence[PageRun],
        slots: Sequence[int],
        layers: Layers,
        after: torch.cuda.Event,
        ended: torch.cuda.Event,
    ) -> None:
        with self._loading, torch.cuda.stream(self._scattering):
            try:
                self._scattering.wait_event(after)
                host, row_bytes = self._rows(slots, layers)
                for at, stop in _cut(len(slots), self._in.window_bytes // row_bytes):
                    window = self._in.take()
                    rows, addresses = window.rows(stop - at, row_bytes)
                    self._copying_in.wait_event(window.emptied)
                    try:
                        copy_stream = self._copying_in.cuda_stream
                        queue_copies(self._driver, addresses, host[at:stop], row_bytes, copy_stream)
                        window.filled.record(self._copying_in)
                        pages, first = self._table(runs[at:stop])
                        self._scattering.wait_event(window.filled)
                        self._mover.scatter(pages, first, rows, self._sizes.load_programs, layers)
                    finally:
                        window.emptied.record(self._scattering)
            finally:
                ended.record(self._scattering)

    def _table(self, runs: Sequence[PageRun]) -> tuple[torch.Tensor, torch.Tensor]:
        """(pages, first) on the device; torch keeps the pinned memory until it was copied."""
        n, width = len(runs), self._kv.pages_per_block
        pinned = torch.empty(n * (width + 1), dtype=torch.int32, pin_memory=True)
        table = pinned.numpy()
        table[n:].reshape(n, width)[:], table[:n] = self._kv.page_table(runs)
        there = pinned.to(self._kv.device, non_blocking=True)
        return there[n:].view(n, width), there[:n]

    def _rows(self, slots: Sequence[int], layers: Layers) -> tuple[Addresses, int]:
        """Where these layers begin in host slots, and their bytes."""
        start, stop = layers
        return self._host[list(slots)] + np.uint64(start * self._segment_bytes), (stop - start) * self._segment_bytes


class _Batch:
    """Straight: the pieces are large, and one call of the driver queues all of them."""

    def __init__(self, kv: PagedKV, host: Addresses, driver: CudaDriver) -> None:
        self._whole, self._within = ContiguousRuns(kv), ContiguousRuns(kv, is_within_layer=True)
        self._all = 0, kv.layout.n_layers
        self._host = host
        self._driver = driver
        self._out = Turns(kv.device, _LOW, driver)
        self._in = torch.cuda.Stream(kv.device, priority=_LOW)

    def gather(
        self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers, after: torch.cuda.Event,
        read: torch.cuda.Event, ended: torch.cuda.Event,
    ) -> None:  # fmt: skip
        try:
            engine, host, n_bytes = self._pieces(runs, slots, layers)
            self._out.copy(host, engine, n_bytes, after)
        finally:
            self._out.record(read)
            self._out.record(ended)

    def scatter(
        self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers, after: torch.cuda.Event,
        ended: torch.cuda.Event,
    ) -> None:  # fmt: skip
        try:
            engine, host, n_bytes = self._pieces(runs, slots, layers)
            self._in.wait_event(after)
            queue_copies(self._driver, engine, host, n_bytes, self._in.cuda_stream)
        finally:
            ended.record(self._in)

    def _pieces(
        self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers
    ) -> tuple[Addresses, Addresses, int]:
        """(engine addresses, host addresses, bytes of each)."""
        pieces = self._whole if layers == self._all else self._within
        return *pieces.pairs(runs, self._host[list(slots)], layers), pieces.run_bytes


def _cut(n_blocks: int, most: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of at most `most` blocks; one while they fit.

    Else, since nothing runs beside the first and the last, these are short. From the first on they double: the next
    window's kernel then ends before the copy of the last one does.
    """
    if n_blocks <= most:
        yield 0, n_blocks
        return
    at, step = 0, (short := max(1, most // 8))
    while at < n_blocks:
        left = n_blocks - at
        size = min(step, left - short if left > short else left)
        yield at, at + size
        at += size
        step = min(most, 2 * step)


def _check_free(sizes: RingSizes, payload_bytes: int, device: torch.device) -> None:
    needs = {
        "tiers.device.load_ring": Ring.bytes_needed(sizes.load_bytes, sizes.window_bytes, payload_bytes),
        "tiers.device.store_ring": Ring.bytes_needed(sizes.store_bytes, sizes.window_bytes, payload_bytes),
    }
    free, _ = torch.cuda.mem_get_info(device)
    if sum(needs.values()) > free:
        largest = max(needs, key=lambda setting: needs[setting])
        if needs[largest] == Ring.bytes_needed(0, sizes.window_bytes, payload_bytes):  # two windows: the least
            largest = "tiers.device.window" if sizes.window_bytes > payload_bytes else "layout.block_tokens"
        raise ConfigError(
            f"{largest}: the staging rings take {sum(needs.values()) >> 20} MiB of GPU memory and {free >> 20} MiB are "
            "free; give less, or lower vLLM's gpu_memory_utilization"
        )
