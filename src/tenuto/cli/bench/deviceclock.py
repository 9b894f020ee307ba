"""Moments on a GPU, as the processor's clock would have told them."""

from __future__ import annotations

import time

import torch


class DeviceClock:
    """Moments of the current stream, in seconds of `time.monotonic`. To be made where the GPU may be waited for."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._base = recorded()
        self._base.synchronize()
        self._base_s = time.monotonic()

    def mark(self) -> torch.cuda.Event:
        """Now, on the stream."""
        return recorded()

    def seconds(self, mark: torch.cuda.Event) -> float:
        """When that was, once it is over."""
        mark.synchronize()
        return self._base_s + self._base.elapsed_time(mark) / 1e3


def recorded() -> torch.cuda.Event:
    """An event that has a time: now, on the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
