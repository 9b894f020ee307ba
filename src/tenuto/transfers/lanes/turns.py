"""Copies out of a GPU, in turns that let other copies through."""

from __future__ import annotations

import numpy as np
import torch

from tenuto.memory.driver import CudaDriver
from tenuto.transfers.lanes.runs import Addresses

TURN_BYTES = 32 << 20
"""Copied by one stream before the other goes on."""


class Turns:
    """Two streams that copy in turn, each piece behind the one before it. To others they are like one stream.

    What one stream has queued, a copy engine goes on with until it is through: on an H200 a copy of 1 KiB out of the
    GPU, such as an engine's sampled tokens, comes after all of a store, 19 ms a GiB. Where the next piece is another
    stream's and waits for an event, the copy engine looks for other work: beside turns of 32 MiB such a copy takes
    0.5 ms (at most 0.9), and ours are as fast as before.
    """

    def __init__(self, device: torch.device, priority: int, driver: CudaDriver) -> None:
        self._stream, self._resting = (torch.cuda.Stream(device, priority=priority) for _ in range(2))
        self._driver = driver

    def wait_event(self, event: torch.cuda.Event) -> None:
        """What is queued from now on comes after it."""
        self._stream.wait_event(event)

    def record(self, event: torch.cuda.Event) -> None:
        """It comes after what was queued so far."""
        event.record(self._stream)

    def copy(self, targets: Addresses, sources: Addresses, n_bytes: int) -> None:
        """Queue copies of so many bytes each."""
        most = max(1, TURN_BYTES // n_bytes)
        for turn in (slice(start, start + most) for start in range(0, len(targets), most)):
            before = torch.cuda.Event()
            before.record(self._stream)
            self._stream, self._resting = self._resting, self._stream
            self._stream.wait_event(before)
            sizes = np.full(len(targets[turn]), n_bytes, dtype=np.uint64)
            self._driver.copy(targets[turn], sources[turn], sizes, self._stream.cuda_stream)
