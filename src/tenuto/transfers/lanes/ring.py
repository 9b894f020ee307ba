"""The staging ring: device memory between a kernel and a copy engine, in windows that are used in turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tenuto.transfers.lanes.runs import Addresses


@dataclass(slots=True)
class Window:
    """Room for some blocks' payloads. `filled`: its bytes are there; `emptied`: they were taken out."""

    buffer: torch.Tensor  # (blocks, payload_bytes), uint8, on the device
    addresses: Addresses  # of the payloads
    filled: torch.cuda.Event
    emptied: torch.cuda.Event


class Ring:
    """At least two windows of `blocks_per_window` payloads, in `size_bytes` of device memory or what these need.

    Whoever takes a window makes its streams wait for its events: there is no wait on the host. An event that was never
    recorded counts as passed.
    """

    def __init__(self, size_bytes: int, window_bytes: int, payload_bytes: int, device: torch.device) -> None:
        self.blocks_per_window = max(1, window_bytes // payload_bytes)
        n_windows = max(2, size_bytes // (self.blocks_per_window * payload_bytes))
        # Zeros: kernels leave the padding behind a layer's last run alone, and the format wants it zero.
        memory = torch.zeros((n_windows, self.blocks_per_window, payload_bytes), dtype=torch.uint8, device=device)
        torch.cuda.current_stream(device).synchronize()  # a first load must not be overtaken by these zeros
        starts = np.arange(self.blocks_per_window, dtype=np.uint64) * np.uint64(payload_bytes)
        self._windows = [
            Window(buffer, starts + np.uint64(buffer.data_ptr()), torch.cuda.Event(), torch.cuda.Event())
            for buffer in memory
        ]
        self._next = 0

    @staticmethod
    def bytes_needed(size_bytes: int, window_bytes: int, payload_bytes: int) -> int:
        """Device memory that a ring of these sizes takes."""
        window = max(1, window_bytes // payload_bytes) * payload_bytes
        return max(2, size_bytes // window) * window

    def take(self) -> Window:
        """The window whose turn it is."""
        window = self._windows[self._next]
        self._next = (self._next + 1) % len(self._windows)
        return window

    def __repr__(self) -> str:
        return f"<Ring {len(self._windows)} windows of {self.blocks_per_window} blocks>"
