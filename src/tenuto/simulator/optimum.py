"""The most hits that any policy can have."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import repeat

from tenuto.simulator.trace import Request
from tenuto.tokens import BlockHash

Blocks = Sequence[BlockHash]


def best_hits(requests: Sequence[Request], n_slots: int) -> int:
    """`optimal_hits` of requests."""
    asked = [request.asked for request in requests]
    kept = [request.hashes[request.kept.start : request.kept.stop] for request in requests]
    return optimal_hits(asked, n_slots, None if asked == kept else kept)


def optimal_hits(requests: Sequence[Blocks], n_slots: int, kept: Sequence[Blocks] | None = None) -> int:
    """Blocks hit before the first miss, over all requests, of the best cache of `n_slots` that knows the future.

    `requests`: the blocks that each asks for. `kept`: those that it then leaves with the cache; None: the same ones.

    Belady's MIN (IBM Systems Journal 5, 1966) with bypass: after each request the cache keeps, of what it had and
    of the request's blocks, those that are used soonest again. A block's parent is used whenever it is, so with ties
    broken from the end of the chain what is kept is closed under prefixes by itself: this is also the optimum of caches
    that lose leaves only. No policy that has to keep what it is given, or makes room before it, can do better. With
    `kept` a block may be held without its parent; it counts all the same, so there this is a bound.
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
    for blocks, left in zip(requests, repeat(()) if kept is None else kept, strict=kept is not None):
        for depth, block in enumerate(blocks):
            numbers = uses[block]
            numbers.pop()
            if block in held:
                n_hits += 1
            elif kept is not None:
                continue
            if numbers:
                held[block] = numbers[-1]
                heappush(furthest, (-numbers[-1], -depth, block))
            else:
                held.pop(block, None)
        for depth, block in enumerate(left):
            if block not in held and (numbers := uses.get(block)):
                held[block] = numbers[-1]
                heappush(furthest, (-numbers[-1], -depth, block))
        while len(held) > n_slots:
            next_use, _, block = heappop(furthest)
            if held.get(block) == -next_use:
                del held[block]
    return n_hits
