"""How much may be moved a second."""

from __future__ import annotations

_BURST_S = 5.0


class Allowance:
    """Blocks and bytes a second; what was not used in the last five seconds may be used at once."""

    def __init__(self, blocks_per_s: float, bytes_per_s: float) -> None:
        self._rates = (blocks_per_s, bytes_per_s)
        self._left = [rate * _BURST_S for rate in self._rates]
        self._at_s: float | None = None

    def n_allowed(self, block_bytes: int, now_s: float) -> int:
        """Blocks of this size that may be moved now."""
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        for i, rate in enumerate(self._rates):
            self._left[i] = min(rate * _BURST_S, self._left[i] + rate * passed_s)
        return max(0, int(min(self._left[0], self._left[1] / max(1, block_bytes))))

    def spend(self, n_blocks: int, block_bytes: int) -> None:
        """So many are moved."""
        self._left[0] -= n_blocks
        self._left[1] -= n_blocks * block_bytes
