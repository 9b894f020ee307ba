"""How much may be moved a second."""

from __future__ import annotations

import math

_BURST_S = 5.0
_ROUNDING = 1e-9  # ten seconds of a tenth of a block are a block


class Allowance:
    """Blocks and bytes a second; what was not used in the last five seconds may be used at once.

    That is one block at least: a rate below it is slow, not none. A rate of 0 allows nothing.
    """

    def __init__(self, blocks_per_s: float, bytes_per_s: float) -> None:
        self._rates = (blocks_per_s, bytes_per_s)
        self._left = [math.inf, math.inf]
        self._at_s: float | None = None

    def n_allowed(self, block_bytes: int, now_s: float) -> int:
        """Blocks of this size that may be moved now."""
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        block_bytes = max(1, block_bytes)
        for i, (rate, least) in enumerate(zip(self._rates, (1, block_bytes), strict=True)):
            most = max(rate * _BURST_S, least) if rate else 0.0
            self._left[i] = min(most, self._left[i] + rate * passed_s)
        return max(0, int(min(self._left[0], self._left[1] / block_bytes) + _ROUNDING))

    def spend(self, n_blocks: int, block_bytes: int) -> None:
        """So many are moved."""
        self._left[0] -= n_blocks
        self._left[1] -= n_blocks * block_bytes
