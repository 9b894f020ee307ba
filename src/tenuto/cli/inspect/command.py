"""`tenuto inspect DIR`: arguments and the exit code."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

from tenuto.errors import ConfigError
from tenuto.settings import expand_user

EXIT_BAD = 1


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the subcommand `inspect`."""
    parser = commands.add_parser(
        "inspect",
        help="what a disk folder holds, and whether it is whole",
        description="Shows what the folder of a disk tier holds: models, engines, blocks, sizes, ages. "
        "Changes nothing, and may run beside engines.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder that tiers.disk.path names")
    parser.add_argument("--verify", action="store_true", help="read every block again; exit code 1 when one is bad")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look, perhaps verify, show; 1 when something that was to be verified is bad."""
    if find_spec("rich") is None:
        raise ConfigError("missing: rich; `pip install rich` brings it")
    from rich.console import Console

    from tenuto.cli.inspect.holders import held_files
    from tenuto.cli.inspect.report import as_json, show
    from tenuto.cli.inspect.survey import survey
    from tenuto.cli.inspect.verification import verify
    from tenuto.cli.progress import BytesBar

    root = survey(expand_user(args.dir, "DIR").absolute(), held_files())
    verdict = None
    if args.verify:
        with BytesBar(Console(stderr=True)) as bar:
            bar.begin("verify", sum(rank.used_bytes for rank in root.ranks))
            verdict = verify(root, bar.advance)
    if args.json:
        print(json.dumps(as_json(root, verdict), indent=2))
    else:
        show(root, verdict, Console())
    return 0 if verdict is None or verdict.is_good else EXIT_BAD
