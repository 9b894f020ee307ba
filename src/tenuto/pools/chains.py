"""Blocks put back into the order of their chains."""

from __future__ import annotations

from collections.abc import Sequence

from tenuto.tokens import BlockKey


def in_chains(keys: Sequence[BlockKey]) -> list[int]:
    """Indices of `keys`, the newest first, so ordered that chains lie whole, from their beginning on.

    Chains come in the order of their newest block. Of several blocks that continue one, the newest lies behind it, and
    each other begins a stretch of its own.
    """
    at = {key.hash: index for index, key in enumerate(keys)}
    before = [at.get(key.parent, -1) for key in keys]
    behind: dict[int, int] = {}
    for index, parent in enumerate(before):
        behind.setdefault(parent, index)
    order: list[int] = []
    is_placed = bytearray(len(keys))
    for newest in range(len(keys)):
        if is_placed[newest]:
            continue
        first = newest
        while (parent := before[first]) >= 0 and behind[parent] == first and not is_placed[parent]:
            first = parent
            if first == newest:  # no chain that we made: blocks that continue each other in a circle
                break
        block: int | None = first
        while block is not None and not is_placed[block]:
            is_placed[block] = 1
            order.append(block)
            block = behind.get(block)
    return order
