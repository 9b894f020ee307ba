"""Draws spans over time, as an SVG of our own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from tenuto.traces import COLOURS, Span, hidden_share
from tenuto.traces.spans import OTHER_COLOUR

_WIDTH, _LEFT, _RIGHT, _TOP = 1280.0, 190.0, 24.0, 84.0  # pixels: all of it, and what is beside and above the rows
_BOX, _LANE, _GAP, _AXIS = 18.0, 21.0, 7.0, 34.0  # heights: a box, its share of a row, between rows, below them
_DIGIT = 7.0  # width of a character in a box
_LEAST = 0.5  # width of the narrowest box; what is narrower and close together is one
_SAME_S = 1e-9  # what a file tells apart
_FONT = "font-family='system-ui, sans-serif' font-size='12'"
_UNITS = ((1e-3, 1e6, "µs"), (10.0, 1e3, "ms"), (math.inf, 1.0, "s"))

Window = tuple[float, float]
"""Half-open, in seconds on the clock of the spans."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A track. `lanes` are spans of it, in order, none of which overlaps another of its lane."""

    track: str
    lanes: list[list[Span]]

    @property
    def height(self) -> float:
        return len(self.lanes) * _LANE


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where a time of the window is drawn, and how it is written: since `zero_s`."""

    start_s: float
    stop_s: float
    zero_s: float

    def x(self, time_s: float) -> float:
        share = (time_s - self.start_s) / (self.stop_s - self.start_s)
        return _LEFT + min(max(share, 0.0), 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """(time, label): at most eleven, 1, 2 or 5 times a power of ten apart."""
        factor, unit = _unit(self.stop_s - self.start_s)
        length = (self.stop_s - self.start_s) * factor
        power = 10.0 ** math.floor(math.log10(length / 10))
        step = next(power * n for n in (1, 2, 5, 10) if power * n * 10 >= length * (1 - 1e-9))
        since = (self.start_s - self.zero_s) * factor
        for number in range(math.ceil(since / step - 1e-6), int((since + length) / step + 1e-6) + 1):
            yield self.zero_s + number * step / factor, f"{number * step:.10g} {unit}"


def draw_timeline(spans: Sequence[Span], title: str = "", window: Window | None = None) -> str:
    """An SVG: a row for each track, a box for each span with its layer's number, a time axis, a legend.

    `window` is what is drawn of it, all unless told otherwise; the axis counts from the first span's beginning. Boxes
    are coloured by name, and each has a tooltip. Raises `ValueError` when there is no time to draw.
    """
    window = window or extent(spans)
    start_s, stop_s = window
    if not (stop_s > start_s and math.isfinite(stop_s - start_s)):
        raise ValueError("there is no time between its beginning and its end")
    scale = _Scale(start_s, stop_s, extent(spans)[0])
    shown = [span for span in spans if span.stop_s >= start_s and span.start_s < stop_s]
    rows = _rows(shown)
    bottom = _TOP + sum(row.height + _GAP for row in rows)
    size = f"width='{_WIDTH:g}' height='{bottom + _AXIS:g}' viewBox='0 0 {_WIDTH:g} {bottom + _AXIS:g}'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {_FONT}>",
        "<rect class='ground' width='100%' height='100%' fill='#ffffff'/>",
        _text(12, 24, title, "font-size='15' font-weight='600'"),
        _text(12, 45, hidden_line(shown, window)),
        *_legend(shown),
        *_axis(scale, bottom),
    ]
    y = _TOP
    for row in rows:
        parts += _row(row, y, scale)
        y += row.height + _GAP
    return "\n".join([*parts, "</svg>\n"])


def extent(spans: Sequence[Span]) -> Window:
    """From the first beginning to the last end; (0, 0) without spans."""
    return min((span.start_s for span in spans), default=0.0), max((span.stop_s for span in spans), default=0.0)


def within(spans: Sequence[Span], window: Window) -> list[Span]:
    """Those that take some of its time."""
    start_s, stop_s = window
    return [span for span in spans if span.stop_s > start_s and span.start_s < stop_s]


def hidden_line(spans: Sequence[Span], window: Window) -> str:
    """What share of the load is hidden under computing within the window, as a sentence."""
    start_s, stop_s = window
    share = hidden_share(
        replace(span, start_s=max(span.start_s, start_s), stop_s=min(span.stop_s, stop_s))
        for span in within(spans, window)
    )
    if share is None:
        return "No load takes any time."
    if not any(span.name == "compute" for span in spans):
        return "It has no spans of computing to tell what is hidden."
    return f"{share:.0%} of the time in which loads run is hidden under computing."


def _rows(spans: Sequence[Span]) -> list[_Row]:
    """Tracks that compute first, then by when they begin. What overlaps in a track lies in lanes, the outer on top."""
    tracks: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start_s, -span.stop_s)):
        tracks.setdefault(span.track, []).append(span)
    ordered = sorted(tracks, key=lambda track: not any(span.name == "compute" for span in tracks[track]))
    return [_Row(track, _lanes(tracks[track])) for track in ordered]


def _lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """Each span, by beginning, into the first lane that is free then."""
    lanes: list[list[Span]] = []
    for span in spans:
        for lane in lanes:
            if lane[-1].stop_s <= span.start_s + _SAME_S:
                lane.append(span)
                break
        else:
            lanes.append([span])
    return lanes


def _row(row: _Row, y: float, scale: _Scale) -> Iterator[str]:
    label = row.track if len(row.track) <= 26 else row.track[:25] + "…"
    yield _text(12, y + _BOX - 5, label)
    yield _line("row", (0, y - _GAP / 2), (_WIDTH, y - _GAP / 2), "#e4e6e8")
    for number, lane in enumerate(row.lanes):
        for first, last, n_spans in _drawable(lane, scale):
            yield _box(first, last, n_spans, y + number * _LANE, scale)


def _drawable(lane: Sequence[Span], scale: _Scale) -> Iterator[tuple[Span, Span, int]]:
    """(first, last, how many): spans of one name that can't be told apart at this size are one box."""
    at = 0
    while at < len(lane):
        first, until = lane[at], at + 1
        right = max(scale.x(first.stop_s), scale.x(first.start_s) + _LEAST)
        while (
            until < len(lane)
            and lane[until].name == first.name
            and scale.x(lane[until].stop_s) <= right
        ):  # fmt: skip
            until += 1
        yield first, lane[until - 1], until - at
        at = until


def _box(first: Span, last: Span, n_spans: int, y: float, scale: _Scale) -> str:
    left = scale.x(first.start_s)
    width = max(scale.x(last.stop_s) - left, _LEAST)
    colour = COLOURS.get(first.name, OTHER_COLOUR)
    tip = f"{n_spans} spans of {first.name}" if n_spans > 1 else _tip(first, scale)
    box = (
        f"<g class='span'><title>{_clean(tip)}</title>"
        f"<rect x='{left:.2f}' y='{y:g}' width='{width:.2f}' height='{_BOX:g}' rx='1.5' fill='#{colour:06x}'/>"
    )
    number = "" if first.layer is None or n_spans > 1 else str(first.layer)
    if number and len(number) * _DIGIT + 2 <= width:
        ink = "#1d2125" if _lightness(colour) > 0.5 else "#ffffff"
        box += _text(left + width / 2, y + _BOX - 5, number, f"text-anchor='middle' fill='{ink}' font-size='11'")
    return box + "</g>"


def _tip(span: Span, scale: _Scale) -> str:
    seconds = span.stop_s - span.start_s
    words = [span.name if span.layer is None else f"{span.name}, layer {span.layer}"]
    words.append(f"{_time(seconds)} from {_time(span.start_s - scale.zero_s)} on")
    if span.n_bytes is not None:
        words.append(f"{span.n_bytes:,} bytes")
        if seconds > 0:
            words.append(f"{span.n_bytes / seconds / 1e9:.3g} GB/s")
    return "; ".join(words)


def _axis(scale: _Scale, bottom: float) -> Iterator[str]:
    yield _line("axis", (_LEFT, bottom), (_WIDTH - _RIGHT, bottom), "#5c646c")
    for time_s, label in scale.ticks():
        x = scale.x(time_s)
        yield _line("tick", (x, _TOP - _GAP), (x, bottom + 5), "#d3d7da")
        yield _text(x, bottom + 19, label, "text-anchor='middle' fill='#5c646c' font-size='11'")


def _legend(spans: Sequence[Span]) -> Iterator[str]:
    x = 12.0
    there = {span.name for span in spans}
    for name in (*(n for n in COLOURS if n in there), *sorted(there - COLOURS.keys())):
        colour = COLOURS.get(name, OTHER_COLOUR)
        yield f"<rect class='legend' x='{x:g}' y='57' width='12' height='12' rx='1.5' fill='#{colour:06x}'/>"
        yield _text(x + 17, 67, name)
        x += 17 + len(name) * _DIGIT + 20


def _line(kind: str, start: tuple[float, float], stop: tuple[float, float], colour: str) -> str:
    (x1, y1), (x2, y2) = start, stop
    return f"<line class='{kind}' x1='{x1:.2f}' y1='{y1:.2f}' x2='{x2:.2f}' y2='{y2:.2f}' stroke='{colour}'/>"


def _text(x: float, y: float, text: str, style: str = "fill='#1d2125'") -> str:
    return f"<text x='{x:.2f}' y='{y:.2f}' {style}>{_clean(text)}</text>"


def _clean(text: str) -> str:
    """As XML may hold it: other programs' names are anything."""
    return escape("".join(letter if letter.isprintable() else "�" for letter in text))


def _unit(length_s: float) -> tuple[float, str]:
    """(how many a second has, name) of the unit in which a time of this length is written."""
    return next((factor, name) for below_s, factor, name in _UNITS if length_s < below_s)


def _time(seconds: float) -> str:
    factor, name = _unit(seconds)
    return f"{seconds * factor:.4g} {name}"


def _lightness(colour: int) -> float:
    """Of an RGB colour, from 0 to 1, as the eye weighs it (ITU-R BT.601)."""
    return (0.299 * (colour >> 16) + 0.587 * (colour >> 8 & 0xFF) + 0.114 * (colour & 0xFF)) / 255
