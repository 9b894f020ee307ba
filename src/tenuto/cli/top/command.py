"""`tenuto top`: arguments, where to look, and how it is shown."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tenuto.errors import ConfigError
from tenuto.settings import combine, read_toml

if TYPE_CHECKING:
    from tenuto.cli.top.lines import Line
    from tenuto.cli.top.looks import Seen
    from tenuto.cli.top.sources import Watcher

EXIT_UNHEARD = 1
_INTERVALS_S = (0.1, 3600.0)
_MOST_RANKS = 1024
_FIRST_S = 0.25
"""Between two drawings until everything was heard of."""
_ONCE_S = 5.0
"""How long `--once` waits for sources that are away, beside the interval."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the subcommand `top`."""
    parser = commands.add_parser(
        "top",
        help="engines as they live: tiers, hit rates, flows, lag",
        description="Shows what engines hold and move, again and again: from their events (blocks by tier, changes, "
        "chains, lag), from their metrics (hit rates, flows, capacities, errors), or from both. Changes nothing. A "
        "source that is away is tried again. Keys: q ends, arrows and page keys scroll. Plain text, once, where "
        "standard output is no terminal.",
    )
    parser.add_argument("events", nargs="*", metavar="EVENTS_URL", help="events.url of an engine, or of a broker")
    parser.add_argument(
        "--metrics", nargs="+", action="extend", default=[], metavar="URL",
        help="http://HOST:PORT/metrics, of runtime.metrics_port or vLLM's own",
    )  # fmt: skip
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="take both from an engine's TOML file, on this machine"
    )
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default: 1)")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="data-parallel ranks at each URL of events, "
                        "and at the port of --config (default: 1)")  # fmt: skip
    parser.add_argument("--once", action="store_true", help="print what there is once; exit code 1 when nobody answers")
    parser.add_argument("--json", action="store_true", help="as --once, as one JSON object")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Sources:
    """URLs of events as they are given, and of metrics."""

    events: tuple[str, ...]
    metrics: tuple[str, ...]


def run(args: argparse.Namespace) -> int:
    """Look and show until q; 1 when it was for once and nobody answered. Raises `ConfigError` for what can't be."""
    if not _INTERVALS_S[0] <= args.interval <= _INTERVALS_S[1]:
        raise ConfigError(f"--interval: {args.interval:g} is out of range; give {_INTERVALS_S[0]} to 3600 seconds")
    sources = find_sources(args)
    from tenuto.cli.top.terminal import is_live

    with _watching(sources, args.ranks, args.interval) as watchers:
        if args.once or args.json or not is_live():
            return _show_once(watchers, args.interval, as_json=args.json)
        _show_live(watchers, args.interval)
    return 0


def find_sources(args: argparse.Namespace) -> Sources:
    """Where to look. Raises `ConfigError`, one line for each that can't be looked at, or when there is nothing."""
    if not 1 <= args.ranks <= _MOST_RANKS:
        raise ConfigError(f"--ranks: {args.ranks} is out of range; give 1 to {_MOST_RANKS}")
    events, urls = list(args.events), list(args.metrics)
    if args.config is not None:
        config = combine([read_toml(args.config)]).config
        if config.events.url and not events:
            events.append(config.events.url)
        if (port := config.runtime.metrics_port) and not urls:
            urls += [f"http://127.0.0.1:{port + rank}/metrics" for rank in range(args.ranks)]
    if not events and not urls:
        if args.config is not None:
            raise ConfigError(
                f"config: {args.config} has neither events.url nor runtime.metrics_port; set one, or give a URL"
            )
        raise ConfigError("nothing to look at; give an EVENTS_URL, --metrics URL, or --config FILE")
    looked_at = [*(_fault_of_events(url, args.ranks) for url in events), *map(_fault_of_metrics, urls)]
    if faults := [fault for fault in looked_at if fault]:
        raise ConfigError("\n".join(faults))
    return Sources(tuple(dict.fromkeys(events)), tuple(dict.fromkeys(urls)))


def _fault_of_events(url: str, n_ranks: int) -> str:
    from tenuto.events import parse_address

    if url.startswith(("http://", "https://")):
        return f"EVENTS_URL: {url!r} is no address of events; give --metrics before it"
    try:
        parse_address(url, "EVENTS_URL").of_rank(n_ranks - 1)
    except ConfigError as error:
        return str(error)
    return ""


def _fault_of_metrics(url: str) -> str:
    form = "give http://HOST:PORT/metrics"
    if url.startswith(("zmq://", "nats://")):
        return f"--metrics: {url!r} is an address of events; give it before --metrics"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"--metrics: {url!r} is no address ({error}); {form}"
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        return f"--metrics: {url!r} is no address of metrics; {form}"
    if "@" in parts.netloc:
        return f"--metrics: the address at {parts.hostname} has a login, which is not used; {form}"
    return ""


@contextmanager
def _watching(sources: Sources, n_ranks: int, interval_s: float) -> Generator[list[Watcher]]:
    """Watchers of all sources, started; what is logged meanwhile goes to them."""
    from tenuto.cli.top.sources import EventsWatcher, MetricsWatcher, Notes, faults_told, stop
    from tenuto.events import parse_address

    if sources.metrics:
        _need_parser()
    watchers: list[Watcher] = []
    for url in sources.events:
        address = parse_address(url)
        host = "127.0.0.1" if address.host == "*" else address.host
        shown = f"{address.scheme}://{host}:{address.port}" + (f"/{address.subject}" if address.subject else "")
        watchers.append(EventsWatcher(url, shown, n_ranks, interval_s))
    watchers += [MetricsWatcher(url, interval_s) for url in sources.metrics]
    root, notes = logging.getLogger(), Notes()
    root.addHandler(notes)
    with faults_told():
        try:
            for watcher in watchers:
                watcher.start()
            yield watchers
        finally:
            stop(watchers)
            root.removeHandler(notes)


def _need_parser() -> None:
    try:
        import prometheus_client.parser  # noqa: F401 # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise ConfigError(
            "--metrics: needs prometheus_client, which is not installed; install tenuto[metrics], or leave it out"
        ) from None


def _see(watchers: list[Watcher]) -> Seen:
    from tenuto.cli.top.looks import EventsSeen, MetricsSeen, Seen

    seen = [watcher.seen for watcher in watchers]
    events = tuple(source for source in seen if isinstance(source, EventsSeen))
    return Seen(time.monotonic(), events, tuple(source for source in seen if isinstance(source, MetricsSeen)))


def _show_once(watchers: list[Watcher], interval_s: float, *, as_json: bool) -> int:
    """When all sources were looked at twice, or some are away for too long."""
    from tenuto.cli.top import figures
    from tenuto.cli.top.frame import whole
    from tenuto.cli.top.lines import plain

    until = time.monotonic() + _ONCE_S + 2 * interval_s
    while not (seen := _see(watchers)).is_whole and time.monotonic() < until:
        time.sleep(0.02)
    if as_json:
        print(json.dumps(figures.as_json(seen), indent=2))
    else:
        to_shown = _writer(plain)
        for line in whole(seen, time.strftime("%H:%M:%S")):
            print(to_shown(line))
    return 0 if seen.has_heard else EXIT_UNHEARD


def _show_live(watchers: list[Watcher], interval_s: float) -> None:
    """Until q; Ctrl-C and SIGTERM end it as any command."""
    from tenuto.cli.top.frame import Window, frame
    from tenuto.cli.top.lines import coloured, plain
    from tenuto.cli.top.terminal import Terminal

    to_shown = _writer(plain if os.environ.get("NO_COLOR") else coloured)
    scroll = 0
    with Terminal() as terminal:
        while True:
            seen = _see(watchers)
            width, height = terminal.size
            title = f"{time.strftime('%H:%M:%S')}, every {interval_s:g} s; q ends"
            lines, furthest = frame(seen, title, Window(width, height, scroll))
            terminal.draw([to_shown(line) for line in lines])
            for key in terminal.wait(interval_s if seen.has_heard_all else min(interval_s, _FIRST_S)):
                if key == "quit":
                    return
                scroll = _scrolled(min(scroll, furthest), key, height, furthest)


def _scrolled(scroll: int, key: str, height: int, furthest: int) -> int:
    page = max(1, height - 4)
    step = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -scroll}[key]
    return min(max(0, scroll + step), furthest)


def _writer(to_text: Callable[[Line], str]) -> Callable[[Line], str]:
    """`to_text`, in ASCII where standard output has no more."""
    from tenuto.cli.top.lines import CUT, FREE, FULL, in_ascii
    from tenuto.cli.wording import is_encodable

    if is_encodable(CUT + FULL + FREE + "µ"):
        return to_text
    return lambda line: in_ascii(to_text(line))
