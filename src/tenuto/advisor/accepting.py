"""Whether an order is one: rules may be of others."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tenuto.advisor.orders import Compact, Drop, Move, Rows
from tenuto.advisor.placement import View

_MOST_ORDERS = 1000


def why_refused(order: Any, view: View, n_before: int) -> str:
    """What is wrong with the order of a rule that gave `n_before` others at this plan; "" for nothing."""
    if n_before >= _MOST_ORDERS:
        return f"it gives more than {_MOST_ORDERS} orders at once"
    if not isinstance(order, Move | Drop | Compact):
        return f"it gives a {type(order).__name__}, which is no order"
    volumes = {volume.name: volume for volume in view.volumes}
    if not isinstance(order, Drop) and order.volume not in volumes:
        return f"it names volume {order.volume!r}, which is not there"
    if isinstance(order, Compact):
        return _why_not_blocks(order.n_blocks, max(volumes[order.volume].n_blocks, 0))
    return _why_not_rows(order.rows, view)


def _why_not_blocks(n_blocks: Any, most: int) -> str:
    is_right = isinstance(n_blocks, int | np.integer) and 0 <= n_blocks <= most
    return "" if is_right else f"it compacts {n_blocks} blocks of {most}"


def _why_not_rows(rows: Any, view: View) -> str:
    if isinstance(rows, np.ndarray):
        column: npt.NDArray[Any] = np.asarray(cast("Any", rows))
        if column.ndim == 1 and column.dtype.kind in "iu":
            return _why_not_here(column, view)
    return "its rows are no column of whole numbers"


def _why_not_here(rows: Rows, view: View) -> str:
    is_here = view.table.is_here
    if len(rows) and (rows.min() < 0 or rows.max() >= len(is_here) or not is_here[rows].all()):
        return "it names rows without a block"
    return "it names a block twice" if len(np.unique(rows)) < len(rows) else ""
