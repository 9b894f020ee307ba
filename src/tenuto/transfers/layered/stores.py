"""Stores layer by layer: a layer leaves the engine's pages behind its attention, and its bytes go on as they land."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from tenuto.errors import Cause
from tenuto.tiers.store import Layers
from tenuto.traces import span
from tenuto.transfers.lanes import Landing
from tenuto.transfers.layered.plan import StorePlan
from tenuto.transfers.layered.threads import Threads
from tenuto.transfers.parts import Failures, Parts, at_indices
from tenuto.transfers.plan import BlockFailure, TransferResult, all_fail

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Store:
    """One plan on its way."""

    plan: StorePlan
    stage_failures: Failures = field(default_factory=dict[int, BlockFailure])
    write_failures: Failures = field(default_factory=dict[int, BlockFailure])
    """By index in `plan.write`."""


@dataclass(slots=True, eq=False)
class _Step:
    """What one forward pass fills."""

    stores: list[_Store]
    began: float
    landings: list[tuple[Layers, Landing]] = field(default_factory=list[tuple[Layers, Landing]])
    n_gathered: int = 0
    """Layers, from the first on."""
    n_moved: int = 0
    """Of `landings`, in order."""
    is_moving: bool = False
    has_ended: bool = False
    is_staged: bool = False
    """Whether it was told how staging has ended."""
    staged_s: float = 0.0


class LayeredStores:
    """Stores of one forward pass at a time, each a host slot's whole block, and on into a store where that is planned.

    On the engine's thread: `begin`, then `store_layer` behind each layer's attention, in order, then `end`. No block is
    seen by others before all of its layers are in host memory, on the store before its header is.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._now: _Step | None = None
        """The engine's thread alone: between `begin` and `end`."""
        self._steps: list[_Step] = []
        self._results: list[TransferResult] = []
        self.n_writes = 0
        """Calls of the store so far."""
        self._threads = Threads("keep", 1, self._take)  # one: layers go to the store in order

    # -- the engine's thread ------------------------------------------------------------------------

    def begin(self, plans: Sequence[StorePlan]) -> None:
        """Blocks that this forward fills."""
        if plans:
            self._now = _Step([_Store(plan) for plan in plans], time.monotonic())
            with self._threads.changed:
                self._steps.append(self._now)

    def store_layer(self, layer: int) -> None:
        """The attention of this layer, and of those before it, is queued: copy what it filled."""
        step = self._now
        if step is not None and layer >= step.n_gathered:
            self._gather(step, (step.n_gathered, layer + 1))

    def end(self) -> None:
        """The forward is queued: copy the layers that `store_layer` was not called for."""
        step, self._now = self._now, None
        if step is None:
            return
        if step.n_gathered < self._parts.n_layers:
            self._gather(step, (step.n_gathered, self._parts.n_layers))
        with self._threads.changed:
            step.has_ended = True
            self._threads.changed.notify_all()

    def poll(self) -> list[TransferResult]:
        """Results since the last call, one for each transfer of a plan."""
        with self._threads.changed:
            results, self._results = self._results, []
        return results

    def n_pending(self) -> int:
        """Transfers without a result."""
        with self._threads.changed:
            return sum(
                (not step.is_staged) + (store.plan.write is not None) for step in self._steps for store in step.stores
            )

    def close(self, timeout_s: float = 0.0) -> bool:
        """End the thread after what is on its way; whether that came within `timeout_s`."""
        self.end()
        return self._threads.close(timeout_s)

    def _gather(self, step: _Step, layers: Layers) -> None:
        stages = [store.plan.stage for store in step.stores]
        runs = [run for stage in stages for run in stage.pages]
        slots = [slot for stage in stages for slot in stage.targets]
        step.n_gathered = layers[1]
        with self._costing_blocks(step, layers):
            landing = self._parts.device.gather(runs, slots, layers)
            with self._threads.changed:
                step.landings.append((layers, landing))
                self._threads.changed.notify_all()

    @contextmanager
    def _costing_blocks(self, step: _Step, layers: Layers) -> Generator[None]:
        """A bug in what is done here costs all blocks of the step, and no more."""
        try:
            yield
        except Exception:
            logger.exception("layers %d to %d of a store failed", *layers)
            with self._threads.changed:
                for store in step.stores:
                    keys = store.plan.stage.keys
                    store.stage_failures = all_fail(range(len(keys)), Cause.IO_ERROR, "internal error")

    # -- the thread ---------------------------------------------------------------------------------

    def _take(self) -> partial[None] | None:
        """Under the lock: the next layers that were gathered, or a step whose layers are all there."""
        if not self._steps or self._steps[0].is_moving:
            return None
        step = self._steps[0]
        if step.n_moved < len(step.landings):
            step.is_moving = True
            return partial(self._move, step, *step.landings[step.n_moved])
        if step.has_ended:
            step.is_moving = True
            return partial(self._finish, step)
        return None

    def _move(self, step: _Step, layers: Layers, landing: Landing) -> None:
        with self._costing_blocks(step, layers):
            landing.wait()
            if layers[1] == self._parts.n_layers:
                self._staged(step)
            self._write(step, layers)
        with self._threads.changed:
            step.n_moved += 1
            step.is_moving = False

    def _staged(self, step: _Step) -> None:
        """All layers are in host memory: what was staged may be seen."""
        parts = self._parts
        step.staged_s = time.monotonic() - step.began
        for store in step.stores:
            stage = store.plan.stage
            for slot, block in zip(stage.targets, stage.blocks, strict=True):
                parts.codec.write_header(parts.arena.slot(slot), block)
        self._tell_staged(step)

    def _tell_staged(self, step: _Step) -> None:
        extent_bytes = self._parts.codec.layout.extent_bytes
        with self._threads.changed:
            for store in step.stores:
                self._results.append(
                    TransferResult.of(store.plan.stage, store.stage_failures, extent_bytes, step.staged_s)
                )
            step.is_staged = True

    def _write(self, step: _Step, layers: Layers | None) -> None:
        """Layers on into the store; the headers when there are none: then blocks are listed."""
        for store in step.stores:
            write, stage = store.plan.write, store.plan.stage
            if write is None or store.stage_failures:
                continue
            indices = [index for index in range(len(write.keys)) if index not in store.write_failures]
            host_slots = [stage.targets[index] for index in store.plan.written]
            items = self._parts.items(write, write.targets, host_slots, indices)
            if not items:
                continue
            self.n_writes += 1
            below = self._parts.needed_store()
            with span("store", layer=None if layers is None else layers[0]):
                failures = below.commit(items) if layers is None else below.write_layers(items, layers)
            store.write_failures |= at_indices(failures, indices)

    def _finish(self, step: _Step) -> None:
        try:
            self._write(step, None)
        except Exception:
            logger.exception("blocks could not be listed")
            with self._threads.changed:
                for store in step.stores:
                    if (write := store.plan.write) is not None:
                        store.write_failures = all_fail(range(len(write.keys)), Cause.IO_ERROR, "internal error")
        if not step.is_staged:  # a layer failed
            self._tell_staged(step)
        seconds = time.monotonic() - step.began
        extent_bytes = self._parts.codec.layout.extent_bytes
        with self._threads.changed:
            for store in step.stores:
                write = store.plan.write
                if write is None:
                    continue
                failures = store.write_failures
                if store.stage_failures:
                    failures = all_fail(range(len(write.keys)), Cause.IO_ERROR, "its source failed")
                self._results.append(TransferResult.of(write, failures, extent_bytes, seconds - step.staged_s))
            self._steps.remove(step)
