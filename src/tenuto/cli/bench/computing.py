"""The computing of a forward pass, made up: so long for each layer, with a span for each."""

from __future__ import annotations

import time
from typing import Protocol

import torch

from tenuto.cli.bench.deviceclock import DeviceClock, recorded
from tenuto.traces import add, span

_SIDE = 4096
_N_CALIBRATING = 50


class Computing(Protocol):
    """Layers in order, between `begin` and `finish`. All of it on the engine's thread."""

    layer_s: float
    """How long one layer is to take; what it took is in its span, named `compute`."""

    def begin(self) -> None:
        """A forward pass begins; nothing is queued."""
        ...

    def compute(self, layer: int) -> None:
        """Compute this layer, or queue it."""
        ...

    def finish(self) -> None:
        """Wait for what is queued, computing or not."""
        ...


class Sleeping:
    """Computing as it looks from a processor beside a GPU: a wait that leaves the processor and the interpreter alone.

    A product of matrices on the processor would, on a machine of few cores, measure how it shares them with what loads.
    """

    def __init__(self) -> None:
        self.layer_s = 0.0

    def begin(self) -> None:
        """Nothing is queued ever."""

    def compute(self, layer: int) -> None:
        """Sleep."""
        with span("compute", layer=layer):
            time.sleep(self.layer_s)

    def finish(self) -> None:
        """All has ended."""


class Products:
    """bf16 products of 4096 x 4096 matrices on the current stream, as many as take the time wished; at least one.

    Spans are measured by the GPU's events.
    """

    def __init__(self) -> None:
        self._one, self._other, self._result = (
            torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(3)
        )
        self._queued: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []
        self._clock = DeviceClock()
        self._product_s = self._calibrated()
        self.layer_s = 0.0

    def begin(self) -> None:
        """Let the clocks of GPU and processor tell the same moment."""
        self._clock = DeviceClock()
        self._queued.clear()

    def compute(self, layer: int) -> None:
        """Queue the products."""
        began = self._clock.mark()
        self._multiply(max(1, round(self.layer_s / self._product_s)))
        self._queued.append((layer, began, self._clock.mark()))

    def finish(self) -> None:
        """Wait for the current stream, and give the spans to who asks for them."""
        recorded().synchronize()
        for layer, began, ended in self._queued:
            start_s, stop_s = self._clock.seconds(began), self._clock.seconds(ended)
            add("compute", start_s, stop_s, "compute stream", layer=layer)

    def _multiply(self, n: int) -> None:
        for _ in range(n):
            torch.mm(self._one, self._other, out=self._result)

    def _calibrated(self) -> float:
        """Seconds of one product, with all of them queued before."""
        self._multiply(_N_CALIBRATING)
        began = recorded()
        self._multiply(_N_CALIBRATING)
        ended = recorded()
        ended.synchronize()
        return began.elapsed_time(ended) / 1e3 / _N_CALIBRATING
