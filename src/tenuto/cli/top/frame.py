"""What was seen, as lines of a terminal: a function of data alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tenuto import metrics
from tenuto.cli.top.figures import HIT_TIERS, Engine, changes, ended_text, engines
from tenuto.cli.top.lines import Columns, Line, Style, bar, cut, cut_line, fit, kept, plain, row, width_of
from tenuto.cli.top.looks import SILENT_S, EventsSeen, MetricsSeen, Seen, WorkerLook
from tenuto.cli.wording import age_text, size_text

_NOTE_S = 5.0
_BAR = 12
_NAME = 40
_ROUTES = ("device_to_host", "host_to_disk", "disk_to_host", "host_to_device", "disk_to_device")
_NONE = "-"
_MORE = "more lines below: arrows, page keys"
_MORE_NARROW = "more lines below; all columns: --once"
_WIDER = "all of it: a wider window, or --once"
_ALL = 1 << 30
"""Room for every line."""

# Tables: their columns, and which of them go first in a window that is narrow.
_HOLDINGS: Columns = (("tier", 14), ("blocks", -10), ("size", -11), ("stored/s", -9), ("removed/s", -10),
                      ("chains", -8), ("largest", 11))  # fmt: skip
_HOLDINGS_GO = ("largest", "chains", "removed/s", "stored/s", "size")
_HITS: Columns = (("hit rate", 12), ("all", -7), ("engine", -8), *((tier, -7) for tier in HIT_TIERS),
                  ("computed", -9), ("tokens asked", -16))  # fmt: skip
_HITS_GO = ("tokens asked", "computed", "peer", "engine", "disk", "host")
_TIERS: Columns = (("tier", 8), ("used", -11), ("of", -11), ("", _BAR + 2), ("full", -6), ("blocks", -11),
                   ("in use", -8), ("evicted/s", -11))  # fmt: skip
_TIERS_GO = ("in use", "", "evicted/s", "blocks", "of", "full")
_FLOWS: Columns = (("flow", 18), ("now", -14), ("blocks/s", -12), ("in flight", -12), ("mean time", -12),
                   ("moved", -12))  # fmt: skip
_FLOWS_GO = ("moved", "in flight", "mean time", "blocks/s")


@dataclass(frozen=True, slots=True)
class Window:
    """Cells of a terminal; `scroll`: lines that are above it."""

    width: int = 80
    height: int = 24
    scroll: int = 0


def whole(seen: Seen, title: str) -> list[Line]:
    """All lines, as long as they are; the first ones are the title and one for each source."""
    return [*_head(seen, title), *_body(seen, _ALL)]


def frame(seen: Seen, title: str, window: Window) -> tuple[list[Line], int]:
    """The lines that a window has room for, and the furthest that it can be scrolled. The title and sources stay.

    Where there is no room for all of it, lines that are empty go first. A window that is too narrow has fewer
    columns, and says so in its last line.
    """
    head, body = _head(seen, title), _body(seen, window.width)
    is_narrow = window.width < max(_needed(seen), *(width_of(plain(line)) for line in head))
    if is_narrow:
        body.append(((_WIDER, Style.FAINT),))
    head = head[: max(1, window.height - 3)]
    room = max(0, window.height - len(head))
    if len(body) > room:
        body = [line for line in body if line]
    furthest = max(0, len(body) - room + 1) if len(body) > room else 0
    scroll = min(window.scroll, furthest)
    shown = body[scroll : scroll + room]
    if furthest and room:
        n_below = len(body) - scroll - (room - 1)
        more = f"{n_below} {_MORE_NARROW if is_narrow else _MORE}"
        shown = [*shown[: room - 1], ((more if n_below > 0 else "the end", Style.FAINT),)]
    return [cut_line(line, window.width) for line in (*head, *shown)], furthest


def _head(seen: Seen, title: str) -> list[Line]:
    lines: list[Line] = [(("tenuto top", Style.TITLE), ("  " + title, Style.FAINT))]
    for source in seen.events:
        lines += _events_lines(source, seen.at_s)
    lines += [_metrics_line(source, seen.at_s) for source in seen.metrics]
    return lines


def _needed(seen: Seen) -> int:
    """Cells in which every table has all its columns."""
    tables: list[Columns] = [_HOLDINGS] if any(source.now.workers for source in seen.events) else []
    if any(source.now and source.now.engines for source in seen.metrics):
        tables += [_HITS, _TIERS, _FLOWS]
    return max((sum(abs(width) for _, width in columns) for columns in tables), default=0)


def _body(seen: Seen, room: int) -> list[Line]:
    lines: list[Line] = []
    for source in seen.events:
        for worker in source.now.workers:
            lines += [(), *_worker(source, worker, room)]
    for endpoint in seen.metrics:
        for engine in engines(endpoint):
            lines += [(), *_engine(endpoint, engine, room)]
    return lines


def _events_lines(source: EventsSeen, at_s: float) -> Iterator[Line]:
    now = source.now
    heard_s = max((worker.heard_s for worker in now.workers), default=None)
    if source.ended:
        said, style = f"{ended_text(source.ended)}: what is shown is {_age(at_s - now.at_s)} old", Style.BAD
    elif not now.n_answering and heard_s is None:
        said, style = "nobody answers; it is tried again", Style.BAD
    elif heard_s is None:
        said, style = "answers; no worker has told anything yet", Style.WARN
    elif now.at_s - heard_s >= SILENT_S:
        said, style = f"silent for {age_text(now.at_s - heard_s)}", Style.BAD
    else:
        said = f"{_counted(len(now.workers), 'worker')}, {_counted(now.n_gaps, 'gap')}, " + _counted(
            now.n_snapshots, "snapshot"
        )
        style = Style.PLAIN
    yield (("events   ", Style.FAINT), (cut(source.url, _NAME) + "  ", Style.PLAIN), (said, style))
    if source.note and (style is Style.BAD or at_s - source.note_s < _NOTE_S):
        yield ((" " * 9, Style.FAINT), (source.note, style))


def _metrics_line(source: MetricsSeen, at_s: float) -> Line:
    now = source.now
    if source.ended:
        said, style = ended_text(source.ended), Style.BAD
        said += "" if now is None else f": what is shown is {_age(at_s - now.at_s)} old"
    elif source.fault:
        said, style = f"{source.fault}; it is tried again", Style.BAD
        if now is not None:
            said += f" (what is shown is {_age(at_s - now.at_s)} old)"
    elif now is None:
        said, style = "asked", Style.FAINT
    elif not now.engines:
        said, style = "answers; it has no series of tenuto", Style.WARN
    else:
        said, style = f"{_counted(len(now.engines), 'engine')}, answered in {_time(now.took_s)}", Style.PLAIN
    return (("metrics  ", Style.FAINT), (cut(source.url, _NAME) + "  ", Style.PLAIN), (said, style))


def _worker(source: EventsSeen, worker: WorkerLook, room: int) -> Iterator[Line]:
    """A worker of the event stream: its tiers, and volumes of them below."""
    silent_s = source.now.at_s - worker.heard_s
    said = f"heard {_age(silent_s)} ago" + ("" if worker.lag_s is None else f", lag {_time(worker.lag_s)}")
    if worker.n_snapshots:
        said += f", {_counted(worker.n_snapshots, 'snapshot')}"
    style = Style.BAD if silent_s >= SILENT_S else Style.FAINT
    title = (
        (cut(f"{worker.node}/{worker.worker}", _NAME), Style.TITLE),
        (f" rank {worker.rank}  ", Style.PLAIN),
        (said, style),
    )
    yield (*title, (f", {worker.n_lost:,} events lost", Style.WARN)) if worker.n_lost else title
    shown = kept(_HOLDINGS, _HOLDINGS_GO, room)
    has_largest = _HOLDINGS[-1] in shown
    yield (*_names(shown[:-1]), ("  largest", Style.FAINT)) if has_largest else _names(shown)
    before = ""
    for holding in worker.holdings:
        rates = changes(source, worker, holding)
        is_next_volume = holding.tier == before and holding.volume
        before = holding.tier
        name = f"  {holding.volume}" if is_next_volume else f"{holding.tier} {holding.volume}".strip()
        cells = (
            name, _count(holding.n_blocks), size_text(holding.size_bytes),
            *map(_rate, rates or (None, None)), _count(holding.n_chains),
        )  # fmt: skip
        largest = "  ".join(f"{n:,} {prefix[:6]}" for prefix, n in holding.largest)
        line = _cells(_HOLDINGS[:-1], shown, cells)
        yield (*line, (f"  {largest}", Style.PLAIN)) if has_largest else line
    if not worker.holdings:
        yield (("no blocks", Style.FAINT),)


def _engine(source: MetricsSeen, engine: Engine, room: int) -> Iterator[Line]:
    """An engine of a metrics endpoint."""
    n_peer = engine.value(metrics.PEER_BLOCKS)
    said = _counted(int(engine.value(metrics.REQUESTS)), "request")
    said += f", {n_peer:,.0f} blocks of peers" if n_peer else ""
    yield (
        (f"engine {cut(engine.name, _NAME) or '?'}", Style.TITLE),
        (f" {cut(engine.model, _NAME)}  " if engine.model else "  ", Style.PLAIN),
        (said, Style.FAINT),
        *(((", not answering now", Style.BAD),) if source.fault and not source.ended else ()),
    )
    yield from _hits(engine, room)
    yield from _tiers(engine, room)
    yield from _flows(engine, room)
    yield from _rest(engine)


def _hits(engine: Engine, room: int) -> Iterator[Line]:
    shown = kept(_HITS, _HITS_GO, room)
    yield _names(shown)
    for name, since_start in (("now", False), ("since start", True)):
        parts = [engine.share(metrics.ENGINE_TOKENS, since_start=since_start)]
        parts += [engine.share(metrics.LOADED_TOKENS, tier, since_start=since_start) for tier in HIT_TIERS]
        known = [part for part in parts if part is not None]
        hit = min(1.0, sum(known)) if known else None
        asked = (
            _count(engine.value(metrics.ASKED_TOKENS))
            if since_start
            else _rate(engine.rate(metrics.ASKED_TOKENS)) + "/s"
        )
        shares = map(_percent, (hit, *parts, None if hit is None else 1 - hit))
        yield _cells(_HITS, shown, (name, *shares, asked))


def _tiers(engine: Engine, room: int) -> Iterator[Line]:
    shown = kept(_TIERS, _TIERS_GO, room)
    yield _names(shown)
    for (tier,) in engine.labels(metrics.TIER_BYTES):
        used, most = (engine.value(metric, tier) for metric in (metrics.TIER_BYTES, metrics.TIER_CAPACITY_BYTES))
        share = used / most if most else None
        sizes = (tier, size_text(int(used)), size_text(int(most)))
        counts = (
            _percent(share), _count(engine.value(metrics.TIER_BLOCKS, tier)),
            _count(engine.value(metrics.TIER_LEASED_BLOCKS, tier)), _rate(engine.rate(metrics.EVICTED_BLOCKS, tier)),
        )  # fmt: skip
        drawn = (("  ", Style.PLAIN), *bar(share or 0.0, _BAR)) if _TIERS[3] in shown else ()
        yield (*_cells(_TIERS[:3], shown, sizes), *drawn, *_cells(_TIERS[4:], shown, counts))


def _flows(engine: Engine, room: int) -> Iterator[Line]:
    shown = kept(_FLOWS, _FLOWS_GO, room)
    there = {route for (route,) in engine.labels(metrics.TRANSFERRED_BYTES)}
    there |= {route for (route,) in engine.labels(metrics.IN_FLIGHT) if engine.value(metrics.IN_FLIGHT, route)}
    if there:
        yield _names(shown)
    for route in (*(r for r in _ROUTES if r in there), *sorted(there - set(_ROUTES))):
        speed = engine.rate(metrics.TRANSFERRED_BYTES, route)
        mean_s = engine.mean(metrics.TRANSFER_SECONDS, route)
        cells = (
            route.replace("_to_", " to "), _NONE if speed is None else size_text(int(speed)) + "/s",
            _rate(engine.rate(metrics.TRANSFERRED_BLOCKS, route)), _count(engine.value(metrics.IN_FLIGHT, route)),
            _NONE if mean_s is None else _time(mean_s), size_text(int(engine.value(metrics.TRANSFERRED_BYTES, route))),
        )  # fmt: skip
        yield _cells(_FLOWS, shown, cells, Style.GOOD if speed else Style.PLAIN)


def _rest(engine: Engine) -> Iterator[Line]:
    """Lines of a word and what is to be said of it."""
    waiting = engine.value(metrics.BACKLOG_BLOCKS)
    skipped = [
        f"{engine.value(metrics.SKIPPED_BLOCKS, reason):,.0f} {reason}"
        for (reason,) in engine.labels(metrics.SKIPPED_BLOCKS)
    ]
    yield _said("writes", f"{waiting:,.0f} blocks wait" + (f"; left out: {', '.join(skipped)}" if skipped else ""))
    loads = f"{_rate(engine.rate(metrics.LOADS))}/s"
    means = [(tier, engine.mean(metrics.LOAD_SECONDS, tier)) for tier in HIT_TIERS]
    loads += "".join(f", {tier} {_time(mean_s)}" for tier, mean_s in means if mean_s is not None)
    gated = sum(engine.value(metrics.GATED_TOKENS, *labels) for labels in engine.labels(metrics.GATED_TOKENS))
    prefill = engine.value(metrics.PREFILL_RATE)
    loads += f"; {_count(gated)} tokens left to the engine" if gated else ""
    loads += f"; it computes {_count(prefill)} tokens/s" if prefill else ""
    yield _said("loads", loads)
    if engine.value(metrics.EVENTS):
        lag_s, lost = engine.value(metrics.EVENT_LAG_SECONDS), engine.value(metrics.EVENTS_LOST)
        told = f"{_rate(engine.rate(metrics.EVENTS))}/s, {_count(engine.value(metrics.EVENT_LAG))} wait"
        told += f", lag {_time(lag_s)}; {_counted(int(engine.value(metrics.EVENT_REPLAYS)), 'replay')}"
        told += f", {_counted(int(engine.value(metrics.EVENT_SNAPSHOTS)), 'snapshot')}, {lost:,.0f} lost"
        yield _said("events", told, Style.WARN if lag_s > 1 or lost else Style.PLAIN)
    if errors := engine.errors():
        yield _said("errors", "; ".join(errors), Style.BAD if engine.has_new_errors else Style.WARN)
    else:
        yield _said("errors", "none")


def _names(shown: Columns) -> Line:
    """A table's first row."""
    return row(shown, Style.FAINT)


def _cells(columns: Columns, shown: Columns, texts: Sequence[str], style: Style = Style.PLAIN) -> Line:
    """A table's row: those of `texts`, one for each of `columns`, that are shown."""
    return row([(text, column[1]) for text, column in zip(texts, columns, strict=True) if column in shown], style)


def _said(word: str, text: str, style: Style = Style.PLAIN) -> Line:
    return ((fit(word, 8), Style.FAINT), (text, style))


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _count(n: float) -> str:
    """12,345; 12.3 M."""
    if abs(n) >= 1e15:
        return f"{n:.2g}" if math.isfinite(n) else _NONE
    for factor, unit in ((1e9, "G"), (1e6, "M")):
        if n >= 10 * factor:
            return f"{n / factor:,.1f} {unit}"
    return f"{n:,.0f}"


def _rate(by_second: float | None) -> str:
    if by_second is None:
        return _NONE
    return f"{by_second:.1f}" if 0 < by_second < 10 else _count(by_second)


def _percent(share: float | None) -> str:
    return _NONE if share is None or not math.isfinite(share) else f"{share:.0%}"


def _age(seconds: float) -> str:
    """0.1 s; 5 min."""
    return age_text(seconds) if seconds >= 60 else f"{seconds:.1f} s"


def _time(seconds: float) -> str:
    """1.2 ms; 3.4 s; 5 min."""
    if seconds >= 1:
        return _age(seconds)
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 or not seconds else f"{seconds * 1e3:.1f} ms"
