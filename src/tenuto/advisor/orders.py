"""What rules ask for: data, which agents carry out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
"""Rows of a block table."""


@dataclass(frozen=True, slots=True)
class Move:
    """Bring blocks to a volume, the first ones first."""

    volume: str
    rows: Rows


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget blocks, the first ones first."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class Compact:
    """Give back the free room in a volume's files. `n_blocks`: how many it may have to copy."""

    volume: str
    n_blocks: int


Order = Move | Drop | Compact
