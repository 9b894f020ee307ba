"""The staging ring: device memory between a kernel and a copy engine, in windows that are used in turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tenuto.transfers.lanes.runs import Addresses


@dataclass(slots=True)
class Window:
    """Room for rows: some blocks' payloads, or a few layers of more. `filled`: bytes are there; `emptied`: taken out.

    Rows are whole segments, so that the padding of segments has its place whatever their length.
    """

    buffer: torch.Tensor  # uint8, on the device
    filled: torch.cuda.Event
    emptied: torch.cuda.Event

    def rows(self, n: int, row_bytes: int) -> tuple[torch.Tensor, Addresses]:
        """``(n, row_bytes)`` of it, and where each begins."""
        rows = self.buffer[: n * row_bytes].view(n, row_bytes)
        starts = np.arange(n, dtype=np.uint64) * np.uint64(row_bytes)
        return rows, starts + np.uint64(self.buffer.data_ptr())


class Ring:
    """At least two windows of about `window_bytes`, whole payloads each, in `size_bytes` or what these need.

    Whoever takes a window makes its streams wait for its events: there is no wait on the host. An event that was never
    recorded counts as passed.
    """

    def __init__(self, size_bytes: int, window_bytes: int, payload_bytes: int, device: torch.device) -> None:
        self.window_bytes = _whole(window_bytes, payload_bytes)
        n_windows = max(2, size_bytes // self.window_bytes)
        # Zeros: kernels leave the padding behind a layer's last run alone, and the format wants it zero.
        memory = torch.zeros((n_windows, self.window_bytes), dtype=torch.uint8, device=device)
        torch.cuda.current_stream(device).synchronize()  # a first load must not be overtaken by these zeros
        self._windows = [Window(buffer, torch.cuda.Event(), torch.cuda.Event()) for buffer in memory]
        self._next = 0

    @staticmethod
    def bytes_needed(size_bytes: int, window_bytes: int, payload_bytes: int) -> int:
        """Device memory that a ring of these sizes takes."""
        window = _whole(window_bytes, payload_bytes)
        return max(2, size_bytes // window) * window

    def take(self) -> Window:
        """The window whose turn it is."""
        window = self._windows[self._next]
        self._next = (self._next + 1) % len(self._windows)
        return window

    def __repr__(self) -> str:
        return f"<Ring {len(self._windows)} windows of {self.window_bytes} bytes>"


def _whole(window_bytes: int, payload_bytes: int) -> int:
    return max(1, window_bytes // payload_bytes) * payload_bytes
