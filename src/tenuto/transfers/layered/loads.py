"""Loads layer by layer: a window of layers is on its way ahead of the one that the engine waits for."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from tenuto.errors import Cause
from tenuto.tiers.store import SlotIO
from tenuto.traces import span
from tenuto.transfers.lanes import LANDED, Landing
from tenuto.transfers.lanes.device import Mark
from tenuto.transfers.layered.plan import LoadPlan
from tenuto.transfers.layered.threads import Threads
from tenuto.transfers.parts import Failures, Parts, at_indices
from tenuto.transfers.plan import BlockFailure, TransferResult, all_fail

logger = logging.getLogger(__name__)

_AT_ONCE = 2
"""Layers that threads have in hand: while one is read, the next is queued behind it. More would only crowd the engine's
thread out of the interpreter."""


@dataclass(slots=True, eq=False)
class _Load:
    """One plan on its way. A block that has failed is left out of later layers."""

    plan: LoadPlan
    items: list[SlotIO]
    """Its blocks for the store that they are read from; none where they are in host memory."""
    failures: Failures = field(default_factory=dict[int, BlockFailure])
    is_told: bool = False
    """Whether its load into pages has its result."""

    def alive(self) -> list[int]:
        """Blocks that have not failed."""
        return [index for index in range(len(self.plan.load.keys)) if index not in self.failures]

    def fail(self, failures: Failures) -> None:
        """These blocks, unless they had failed before."""
        self.failures = failures | self.failures


@dataclass(slots=True, eq=False)
class _Step:
    """The loads that one forward pass waits for."""

    loads: list[_Load]
    mark: Mark
    began: float
    layers: list[Landing | None]
    """What puts each layer into pages; None until it is queued."""
    layer_bytes: int
    n_claimed: int = 0
    n_moving: int = 0
    """Layers that a thread has in hand."""
    n_touching: int = 0
    """Of them, those that are being queued into pages."""
    asked: int = 0
    """The layer that the engine waits for."""
    fenced: set[int] = field(default_factory=set[int])
    """Layers that it has waited for."""
    is_open: bool = False
    """Whether the first layer's bytes, and the headers, are there."""
    is_given_up: bool = False
    has_ended: bool = False
    is_landing: bool = False
    n_reading: int = 0
    reading_since: float = 0.0
    read_s: float = 0.0
    """In which at least one layer was being read."""

    def may_claim(self, n_ahead: int) -> bool:
        """Whether the next layer may go, not more than so many beyond the one that is waited for."""
        layer = self.n_claimed
        is_over = self.is_given_up or layer == len(self.layers) or layer > self.asked + n_ahead
        return not is_over and (self.is_open or not layer)  # headers have the sums of later layers


class LayeredLoads:
    """Loads of one forward pass at a time.

    On the engine's thread: `begin`, then `load_layer` before each layer's attention, then `end`; `withdraw` in between.
    Reads of a layer are one call of the store. At most `lookahead` layers are on their way beyond the one that is
    waited for, and while `most_bytes` are, only that one. When a layer has not come `timeout_s` after `begin`,
    the rest is given up: its blocks fail, and nothing touches their pages any more. A load that waited for a read is
    answered at once then, and the read when it has ended.
    """

    def __init__(self, parts: Parts, *, lookahead: int = 4, most_bytes: int = 1 << 30, timeout_s: float = 30.0) -> None:
        self._parts = parts
        self._lookahead = lookahead
        self._most_bytes = most_bytes
        self._timeout_s = timeout_s
        self._now: _Step | None = None
        """The engine's thread alone: between `begin` and `end`."""
        self._steps: list[_Step] = []
        self._results: list[TransferResult] = []
        self.n_reads = 0
        """Calls of the store so far."""
        self.waited_s = 0.0
        """That the engine's thread has waited for layers, so far."""
        self._threads = Threads("layers", min(_AT_ONCE, lookahead + 1), self._take)

    # -- the engine's thread ------------------------------------------------------------------------

    def begin(self, plans: Sequence[LoadPlan], mark: Mark) -> None:
        """Start with the first layers; pages are not written before what `mark` marks has ended."""
        if not plans:
            return
        parts = self._parts
        loads = [_Load(plan, _items(parts, plan)) for plan in plans]
        for load in loads:
            if load.plan.read is None:
                load.fail(parts.wrong_headers(load.plan.load, load.plan.load.sources, load.alive()))
        layer_bytes = sum(len(plan.load.keys) for plan in plans) * parts.codec.layout.segment_bytes
        self._now = step = _Step(loads, mark, time.monotonic(), [None] * parts.n_layers, layer_bytes)
        with self._threads.changed:
            self._steps.append(step)
            self._threads.changed.notify_all()

    def load_layer(self, layer: int) -> None:
        """What the engine queues from now on finds this layer in its pages, or its block has failed."""
        if (step := self._now) is None:
            return
        with span("wait", layer=layer), self._threads.changed:
            step.asked = max(step.asked, layer)
            self._threads.changed.notify_all()
            asked_at = time.monotonic()
            is_there = self._threads.changed.wait_for(
                lambda: step.layers[layer] is not None or step.is_given_up,
                max(step.began + self._timeout_s - asked_at, 0.0),
            )
            self.waited_s += time.monotonic() - asked_at
            if not is_there:
                self._give_up(step, Cause.TIMEOUT)
            landing = step.layers[layer]
        if landing is not None:
            landing.fence()
        step.fenced.add(layer)

    def end(self) -> dict[int, Failures]:
        """The forward is queued: the failures, by the id of the load. Results follow when all bytes have landed.

        A layer that was not waited for was computed with whatever its pages held: all blocks fail.
        """
        step, self._now = self._now, None
        if step is None:
            return {}
        with self._threads.changed:
            if len(step.fenced) < self._parts.n_layers:
                self._give_up(step, Cause.CANCELLED)
            step.has_ended = True
            self._threads.changed.notify_all()
            return {load.plan.load.id: dict(load.failures) for load in step.loads if load.failures}

    def withdraw(self, load_id: int) -> None:
        """What of this load is not submitted yet never is; its slots are free when its result has come."""
        if (step := self._now) is None:
            return
        with self._threads.changed:
            for load in step.loads:
                if load.plan.load.id == load_id:
                    load.fail(all_fail(load.alive(), Cause.CANCELLED))
            self._wait_untouched(step)

    def poll(self) -> list[TransferResult]:
        """Results since the last call, one for each transfer of a plan."""
        with self._threads.changed:
            results, self._results = self._results, []
        return results

    def n_pending(self) -> int:
        """Transfers without a result."""
        with self._threads.changed:
            return sum(len(load.plan.transfers) - load.is_told for step in self._steps for load in step.loads)

    def is_stuck(self) -> bool:
        """Whether a thread still has a layer of a load that was given up: what begins now might wait for it."""
        with self._threads.changed:
            return any(step.is_given_up and step.n_moving for step in self._steps)

    def close(self, timeout_s: float = 0.0) -> bool:
        """End the threads after what is on its way; whether that came within `timeout_s`."""
        self.end()
        return self._threads.close(timeout_s)

    def _give_up(self, step: _Step, cause: Cause) -> None:
        """Under the lock."""
        step.is_given_up = True
        for load in step.loads:
            load.fail(all_fail(load.alive(), cause))
        self._wait_untouched(step)
        extent_bytes = self._parts.codec.layout.extent_bytes
        for load in step.loads:
            if load.plan.read is not None and not load.is_told:  # the read holds the host slots
                self._results.append(_loaded(load, extent_bytes))
                load.is_told = True

    def _wait_untouched(self, step: _Step) -> None:
        """Under the lock: what is being queued into pages is queued, and the engine's next computing comes after it."""
        self._threads.changed.wait_for(lambda: not step.n_touching)
        for landing in step.layers:
            if landing is not None:
                landing.fence()

    # -- threads ------------------------------------------------------------------------------------

    def _take(self) -> partial[None] | None:
        """Under the lock: the next layer that may go, or a step that has ended and is to land."""
        for step in self._steps:
            if step.has_ended and not step.n_moving and not step.is_landing:
                step.is_landing = True
                return partial(self._land, step)
            n_ahead = self._lookahead if step.n_moving * step.layer_bytes < self._most_bytes else 0
            if step.may_claim(n_ahead):
                layer, step.n_claimed = step.n_claimed, step.n_claimed + 1
                step.n_moving += 1
                return partial(self._move, step, layer)
        return None

    def _move(self, step: _Step, layer: int) -> None:
        try:
            self._read(step, layer)
            self._into_pages(step, layer)
        except Exception:
            logger.exception("layer %d of a load failed", layer)
            with self._threads.changed:
                for load in step.loads:
                    load.fail(all_fail(load.alive(), Cause.IO_ERROR, "internal error"))
        finally:
            with self._threads.changed:
                step.layers[layer] = step.layers[layer] or LANDED
                step.is_open = True  # not before: the first layer would wait for the interpreter behind the next ones
                step.n_moving -= 1
                self._threads.changed.notify_all()

    def _read(self, step: _Step, layer: int) -> None:
        """From the store into host slots: one call for each volume, which is one for most."""
        by_volume: dict[str, list[tuple[_Load, list[int], list[SlotIO]]]] = {}
        with self._threads.changed:
            for load in step.loads:
                if (read := load.plan.read) is not None and (indices := load.alive()):
                    items = [load.items[index] for index in indices]
                    by_volume.setdefault(read.volume, []).append((load, indices, items))
        for volume, parts in by_volume.items():
            items = list(itertools.chain.from_iterable(items for _, _, items in parts))
            n_bytes = len(items) * self._parts.codec.layout.segment_bytes
            with _reading(step, self._threads.changed), span("load", layer=layer, n_bytes=n_bytes):
                failures = self._parts.needed_store().read(items, volume, (layer, layer + 1))
            with self._threads.changed:
                self.n_reads += 1
                at = 0
                for load, indices, its in parts:
                    load.fail(at_indices(failures, indices, at))
                    at += len(its)

    def _into_pages(self, step: _Step, layer: int) -> None:
        with self._threads.changed:
            if step.is_given_up:
                return
            pairs = [
                (load.plan.load.pages[index], load.plan.load.sources[index])
                for load in step.loads for index in load.alive()
            ]  # fmt: skip
            step.n_touching += 1
        landing: Landing | None = None
        try:
            runs, slots = [run for run, _ in pairs], [slot for _, slot in pairs]
            landing = self._parts.device.scatter(runs, slots, step.mark, (layer, layer + 1))
        finally:
            with self._threads.changed:
                step.n_touching -= 1
                step.layers[layer] = landing  # at once: who waits until nothing is touched fences what was queued
                self._threads.changed.notify_all()

    def _land(self, step: _Step) -> None:
        """Wait for the last bytes; host slots may be given to others then."""
        try:
            for landing in step.layers:
                if landing is not None:
                    landing.wait()
        except Exception:  # the GPU has failed
            logger.exception("a load by layers has not landed")
            for load in step.loads:
                load.fail(all_fail(load.alive(), Cause.IO_ERROR, "internal error"))
        extent_bytes = self._parts.codec.layout.extent_bytes
        n_read = sum(len(load.items) for load in step.loads)
        results: list[TransferResult] = []
        for load in step.loads:
            if load.plan.read is not None:
                seconds = step.read_s * len(load.items) / n_read  # of reads that were made together, its part
                results.append(TransferResult.of(load.plan.read, load.failures, extent_bytes, seconds))
            if not load.is_told:
                results.append(_loaded(load, extent_bytes))
        with self._threads.changed:
            self._results += results
            self._steps.remove(step)


def _items(parts: Parts, plan: LoadPlan) -> list[SlotIO]:
    read = plan.read
    return [] if read is None else parts.items(read, read.sources, read.targets, range(len(read.keys)))


def _loaded(load: _Load, extent_bytes: int) -> TransferResult:
    """What computing hid is no cost."""
    return TransferResult.of(load.plan.load, load.failures, extent_bytes, 0.0)


@contextmanager
def _reading(step: _Step, lock: threading.Condition) -> Generator[None]:
    """Counts the time in which something is read; what waits for the engine is none of the store's."""
    with lock:
        if not step.n_reading:
            step.reading_since = time.monotonic()
        step.n_reading += 1
    try:
        yield
    finally:
        with lock:
            step.n_reading -= 1
            if not step.n_reading:
                step.read_s += time.monotonic() - step.reading_since
