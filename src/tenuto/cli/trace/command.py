"""`tenuto trace FILE`: arguments, and the picture's file."""

from __future__ import annotations

import argparse
from pathlib import Path

from tenuto.errors import ConfigError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the subcommand `trace`."""
    parser = commands.add_parser(
        "trace",
        help="a picture of a trace file",
        description="Draws the spans of a trace file that runtime.trace_file or a bench has written: one row for each "
        "thread or stream, over time. Perfetto (ui.perfetto.dev) opens the same file.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a trace in Chrome's JSON format")
    parser.add_argument("--out", type=Path, metavar="SVG", help="where the picture goes (default: FILE.svg)")
    parser.add_argument("--from-ms", type=float, metavar="MS", help="begin so long after the first span's beginning")
    parser.add_argument("--to-ms", type=float, metavar="MS", help="end so long after the first span's beginning")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, draw, write; one line says what came of it."""
    from tenuto.cli.trace.timeline import draw_timeline, extent, hidden_line, within
    from tenuto.settings import expand_user
    from tenuto.traces import read_trace

    path = expand_user(args.file, "FILE")
    out = path.with_suffix(".svg") if args.out is None else expand_user(args.out, "--out")
    spans = read_trace(path)
    first_s, last_s = extent(spans)
    window = (
        first_s if args.from_ms is None else first_s + args.from_ms / 1e3,
        last_s if args.to_ms is None else first_s + args.to_ms / 1e3,
    )
    try:
        picture = draw_timeline(spans, path.name, window)
    except ValueError as error:
        raise ConfigError(f"{path}: nothing to draw: {error}") from None
    out.write_text(picture, "utf-8")
    n_shown = len(within(spans, window))
    part = "" if n_shown == len(spans) else f" of {len(spans)}"
    print(f"{out}: {n_shown}{part} spans. {hidden_line(spans, window)}")
    return 0
