"""Copies out of a GPU, in turns that let other copies through."""

from __future__ import annotations

import torch

from tenuto.memory.driver import CudaDriver
from tenuto.transfers.lanes.runs import Addresses, queue_copies

TURN_BYTES = 64 << 20
"""Copied by one stream before the next goes on."""
_N_STREAMS = 3


class Turns:
    """Streams that copy in turn, each turn when the last but one has ended. To others they are like one stream.

    What a stream has queued, a copy engine goes on with until it is through: on an H200 a copy of 1 KiB out of the
    GPU, such as an engine's sampled tokens, came after all of a store, 19 ms a GiB. A stream that waits for an event of
    another has it look for other work, and as one turn is ready while another runs, the wire never waits.
    """

    def __init__(self, device: torch.device, priority: int, driver: CudaDriver) -> None:
        self._driver = driver
        self._streams = [torch.cuda.Stream(device, priority=priority) for _ in range(_N_STREAMS)]
        self._ended = [torch.cuda.Event() for _ in range(_N_STREAMS)]  # the last turn of each
        self._now = 0
        """Whose turn was the last."""

    def copy(self, targets: Addresses, sources: Addresses, n_bytes: int, after: torch.cuda.Event) -> None:
        """Queue copies of so many bytes each, behind an event."""
        most = max(1, TURN_BYTES // n_bytes)
        for turn in (slice(start, start + most) for start in range(0, len(targets), most)):
            last_but_one, self._now = self._ended[self._now - 1], (self._now + 1) % _N_STREAMS
            stream = self._streams[self._now]
            stream.wait_event(last_but_one)
            stream.wait_event(after)
            try:
                queue_copies(self._driver, targets[turn], sources[turn], n_bytes, stream.cuda_stream)
            finally:
                self._ended[self._now].record(stream)

    def record(self, event: torch.cuda.Event) -> None:
        """It comes after all that was queued so far."""
        last = self._streams[self._now]  # comes after the last but one, and so on
        last.wait_event(self._ended[self._now - 1])  # comes after the last but two, and so on
        event.record(last)
