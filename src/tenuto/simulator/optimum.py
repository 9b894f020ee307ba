"""The most hits that any policy can have."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from tenuto.tokens import BlockHash


def optimal_hits(requests: Sequence[Sequence[BlockHash]], n_slots: int) -> int:
    """Blocks hit before the first miss, over all requests, of the best cache of `n_slots` that knows the future.

    Belady's MIN (IBM Systems Journal 5, 1966) with bypass: after each request the cache keeps, of what it had and
    of the request's blocks, those that are used soonest again. A block's parent is used whenever it is, so with ties
    broken from
    the end of the chain what is kept is closed under prefixes by itself: this is also the optimum of caches that lose
    leaves only. No policy that has to keep what it is given, or makes room before it, can do better.
    """
    uses: dict[BlockHash, list[int]] = {}
    for number, blocks in enumerate(requests):
        for block in blocks:
            uses.setdefault(block, []).append(number)
    for numbers in uses.values():
        numbers.reverse()
    held: dict[BlockHash, int] = {}  # block → next use
    furthest: list[tuple[int, int, BlockHash]] = []
    n_hits = 0
    for blocks in requests:
        n_found = 0
        while n_found < len(blocks) and blocks[n_found] in held:
            n_found += 1
        n_hits += n_found
        for depth, block in enumerate(blocks):
            numbers = uses[block]
            numbers.pop()
            if numbers:
                held[block] = numbers[-1]
                heappush(furthest, (-numbers[-1], -depth, block))
            else:
                held.pop(block, None)
        while len(held) > n_slots:
            next_use, _, block = heappop(furthest)
            if held.get(block) == -next_use:
                del held[block]
    return n_hits
