"""The ceiling of a load from host memory: pinned memory to the device, nothing else."""

from __future__ import annotations

import time
from typing import Any

N_COPIES = 5


class WireMeter:
    """Two buffers of `n_bytes`, one pinned, one on the device; on a machine without a GPU both are plain memory."""

    def __init__(self, n_bytes: int) -> None:
        import torch

        self.n_bytes = n_bytes
        self._has_gpu = torch.cuda.is_available()
        self._source: Any = torch.ones(n_bytes, dtype=torch.uint8, pin_memory=self._has_gpu)
        self._target: Any = torch.empty(n_bytes, dtype=torch.uint8, device="cuda" if self._has_gpu else "cpu")
        self._copy()

    def measure(self) -> list[float]:
        """Bytes per second of a few copies, one after the other."""
        return [self.n_bytes / self._copy() for _ in range(N_COPIES)]

    def _copy(self) -> float:
        if not self._has_gpu:
            began = time.perf_counter()
            self._target.copy_(self._source)
            return time.perf_counter() - began
        import torch

        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began.record()
        self._target.copy_(self._source, non_blocking=True)
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) / 1e3
