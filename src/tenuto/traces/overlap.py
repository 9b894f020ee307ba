"""How much of one kind of work runs beside another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from tenuto.traces.spans import Span

Interval = tuple[float, float]


def hidden_share(
    spans: Iterable[Span], work: Collection[str] = ("load",), cover: Collection[str] = ("compute",)
) -> float | None:
    """The time in which a load and a compute span run, over the time in which a load runs; None without loads.

    Loads beside each other count once. `work` and `cover` are names of spans, should others be meant.
    """
    spans = list(spans)
    loads = merged((span.start_s, span.stop_s) for span in spans if span.name in work)
    computing = merged((span.start_s, span.stop_s) for span in spans if span.name in cover)
    total_s = sum(stop - start for start, stop in loads)
    if not total_s:
        return None
    return sum(stop - start for start, stop in _both(loads, computing)) / total_s


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union, as intervals in order that do not touch."""
    union: list[Interval] = []
    for start, stop in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], stop)
        else:
            union.append((start, stop))
    return union


def _both(one: Sequence[Interval], other: Sequence[Interval]) -> Iterator[Interval]:
    """The intersection of two unions."""
    at = 0
    for start, stop in one:
        while at < len(other) and other[at][1] <= start:
            at += 1
        for begin, end in other[at:]:
            if begin >= stop:
                break
            yield max(start, begin), min(stop, end)
