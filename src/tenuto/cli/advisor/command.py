"""`tenuto advisor`: arguments, and the process."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from tenuto.errors import ConfigError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the subcommand `advisor`."""
    parser = commands.add_parser(
        "advisor",
        help="keep hot blocks on fast volumes",
        description="Hears the events of engines, learns which blocks come back, and has the blocks of their disk "
        "tiers moved between volumes, until it is told to end (SIGTERM, Ctrl-C). An option goes before what stands in "
        "the file.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings")
    parser.add_argument("--events", metavar="URL", help="where engines publish, as their events.url")
    parser.add_argument("--disk", metavar="DIR", help="the engines' tiers.disk.path")
    parser.add_argument(
        "--volume", action="append", metavar="NAME=FOLDER?capacity=SIZE",
        help='a volume, the fastest first (again for each); "home": where engines write new blocks, else the last',
    )  # fmt: skip
    parser.add_argument(
        "--rule", action="append", metavar="NAME", help="demote, promote, prune, compact or module:Class"
    )
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be done")
    parser.add_argument("--http", metavar="HOST:PORT", help="serve the index as JSON there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Work until a signal comes; 0."""
    from tenuto.advisor import Sockets, load_advisor_settings
    from tenuto.advisor.http import ReportServer
    from tenuto.advisor.service import Service
    from tenuto.advisor.settings import check_disk, parse_http
    from tenuto.events import subscribe

    settings = load_advisor_settings(args.config, _given(args))
    if not settings.events.url:
        raise ConfigError("events.url: it hears nobody; give the URL where engines publish (--events URL)")
    check_disk(settings.disk)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    with subscribe(settings.events.url, n_ranks=settings.events.n_ranks) as events:
        service = Service(settings, Sockets(), events)
        server = None
        if settings.http:
            server = ReportServer(service, *parse_http(settings.http, may_be_anywhere=settings.http_anywhere))
            print(f"tenuto advisor: http port {server.port}", file=sys.stderr, flush=True)
        try:
            service.run()
        except KeyboardInterrupt:  # so comes SIGTERM, too: it is how this ends
            pass
        finally:
            service.stop()
            if server is not None:
                server.close()
    return 0


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, by the names of settings."""
    options = {
        "events.url": args.events,
        "disk.path": args.disk,
        "volumes": args.volume,
        "rules": args.rule,
        "dry_run": args.dry_run or None,
        "http": args.http,
    }
    return {name: value for name, value in options.items() if value is not None}
