"""The advisor's placement on a recorded trace, beside LRU placement and the optimum."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from tenuto.advisor import Advisor, AdvisorSettings, Move
from tenuto.cli.bench.measured import Measured
from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Figures
from tenuto.events import Batch, BlockShape, Source
from tenuto.events.grouping import group_facts
from tenuto.pools.facts import Fact, TierKind, Used
from tenuto.simulator import Request, read_trace
from tenuto.testing.agents import MadeUpAgent
from tenuto.tokens import BlockHash

_FAST = "fast"
_SOURCE = Source("node", "bench", 0, bytes(16))
_NAME = (_SOURCE.worker, _SOURCE.rank)


@dataclass(frozen=True, slots=True)
class AdvisorSizes:
    """`share` of the distinct blocks fit into the fast volume. `block_bytes`: 512 tokens of 32 KiB each."""

    share: float = 0.1
    block_bytes: int = 16 << 20
    most_requests: int = 0
    """The first ones of the trace; 0: all."""


@dataclass(slots=True)
class Placed:
    """What came of one trace. `n_reads`: of blocks that were there; `plan_ms`: mean time of taking in and planning."""

    n_requests: int = 0
    n_blocks: int = 0
    n_fast: int = 0
    n_reads: int = 0
    advisor_hits: int = 0
    lru_hits: int = 0
    optimum_hits: int = 0
    n_promoted: int = 0
    n_demoted: int = 0
    plan_ms: float = 0.0

    @property
    def over_lru(self) -> float:
        """Hits over those of LRU placement."""
        return self.advisor_hits / self.lru_hits if self.lru_hits else 0.0


def measure_advisor(trace: Path, sizes: AdvisorSizes, bar: Bar) -> Measured:
    """All of the trace, and each half of its requests alone: nothing is learnt beyond its own run.

    A read is a hit when its block lies in the fast volume then. `advisor`: the real core, with its settings' defaults,
    hears the events that such a run makes, plans behind each request on the trace's clock, and a made-up agent carries
    out its orders at once. `lru`: every block that is read or written goes to the fast volume, and the one unused
    for the longest time leaves it. `optimum`: Belady's MIN with bypass, of blocks.
    """
    requests = read_trace(trace)[: sizes.most_requests or None]
    middle = len(requests) // 2
    parts = {"": requests, "first_half_": requests[:middle], "second_half_": requests[middle:]}
    figures: Figures = {}
    details: dict[str, Any] = {"trace": trace.name, "sizes": asdict(sizes)}
    for name, part in bar.over(parts.items(), "advisor", len(parts)):
        placed = place(part, sizes)
        details[f"{name or 'whole_'}run"] = asdict(placed)
        reads = max(1, placed.n_reads)
        figures[f"{name}over_lru"] = round(placed.over_lru, 4)
        figures |= {
            f"{name}{way}_share": round(n / reads, 4)
            for way, n in (
                ("advisor", placed.advisor_hits), ("lru", placed.lru_hits), ("optimum", placed.optimum_hits),
            )
        }  # fmt: skip
        if not name:
            figures["plan_ms"] = round(placed.plan_ms, 3)
            figures["moved_per_read"] = round((placed.n_promoted + placed.n_demoted) / reads, 3)
    return Measured(figures, details=details)


def place(requests: Sequence[Request], sizes: AdvisorSizes) -> Placed:
    """One run of each way."""
    asked = [request.hashes for request in requests]
    n_blocks = len({block for blocks in asked for block in blocks})
    n_fast = max(1, int(sizes.share * n_blocks))
    placed = Placed(len(requests), n_blocks, n_fast)
    _advise(requests, placed, sizes)
    placed.lru_hits = _lru_hits(asked, n_fast)
    placed.optimum_hits = _optimal_hits(asked, n_fast)
    return placed


def _advise(requests: Sequence[Request], placed: Placed, sizes: AdvisorSizes) -> None:
    advisor = Advisor(AdvisorSettings(volumes=(f"{_FAST}=/fast?capacity=1",)))
    agent = MadeUpAgent({_FAST: placed.n_fast, "": placed.n_blocks}, _SOURCE.worker, sizes.block_bytes)
    teller = _Teller(BlockShape(sizes.block_bytes, 512))
    spent_s = 0.0
    for request in requests:
        keys = [request.block(index).key for index in range(len(request.hashes))]
        known = tuple(key for key in keys if key.hash in agent.places)
        placed.n_reads += len(known)
        placed.advisor_hits += sum(agent.places[key.hash] == _FAST for key in known)
        agent.write(keys)
        read: list[Fact] = [Used(TierKind.DISK, known)] if known else []
        batch = teller.batch([*read, *agent.take_facts()], request.time_s)
        volumes = agent.describe().volumes
        began = time.perf_counter()
        advisor.take(batch)
        tasks = advisor.plan(_NAME, volumes, sizes.block_bytes, request.time_s)
        spent_s += time.perf_counter() - began
        for task in tasks:
            if isinstance(task.order, Move):
                moved = agent.move(task.hashes, task.order.volume)
                advisor.take(teller.batch(agent.take_facts(), request.time_s))
                advisor.done(_NAME, task, moved, request.time_s)
    placed.n_promoted, placed.n_demoted = agent.n_moved[_FAST], agent.n_moved[""]
    placed.plan_ms = 1e3 * spent_s / max(1, len(requests))


class _Teller:
    """Facts as batches of one stream."""

    def __init__(self, shape: BlockShape) -> None:
        self._shape = shape
        self._first = 1

    def batch(self, facts: Sequence[Fact], now_s: float) -> Batch:
        """One, however large."""
        groups = tuple(group for some, _ in group_facts(facts, self._shape, 1 << 30) for group in some)
        batch = Batch(bytes(8), self._first, round(1e3 * now_s), _SOURCE, groups)
        self._first += batch.n_events
        return batch


def _lru_hits(asked: Sequence[Sequence[BlockHash]], n_slots: int) -> int:
    held: OrderedDict[BlockHash, None] = OrderedDict()
    n_hits = 0
    for blocks in asked:
        for block in blocks:
            if block in held:
                n_hits += 1
                held.move_to_end(block)
            else:
                held[block] = None
                if len(held) > n_slots:
                    held.popitem(last=False)
    return n_hits


def _optimal_hits(asked: Sequence[Sequence[BlockHash]], n_slots: int) -> int:
    """Hits of a cache that keeps what is used soonest again (Belady, IBM Systems Journal 5, 1966)."""
    uses: dict[BlockHash, list[int]] = {}
    for number, block in enumerate(block for blocks in asked for block in blocks):
        uses.setdefault(block, []).append(number)
    for numbers in uses.values():
        numbers.reverse()
    held: dict[BlockHash, int] = {}
    furthest: list[tuple[int, BlockHash]] = []
    n_hits = 0
    for blocks in asked:
        for block in blocks:
            n_hits += block in held
            numbers = uses[block]
            numbers.pop()
            if not numbers:
                held.pop(block, None)
                continue
            held[block] = numbers[-1]
            heappush(furthest, (-numbers[-1], block))
            while len(held) > n_slots:
                next_use, last = heappop(furthest)
                if held.get(last) == -next_use:
                    del held[last]
    return n_hits
