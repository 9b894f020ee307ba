"""`tenuto doctor`: arguments, what is shown, the exit code."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tenuto.cli.folders import chosen_folder
from tenuto.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from tenuto.cli.doctor.examination import Section

EXIT_UNFIT = 1
COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the subcommand `doctor`."""
    parser = commands.add_parser(
        "doctor",
        help="whether this machine is fit, and what to do where it is not",
        description="Looks at machine, disk, software and devices. Writes and reads a scratch file of at most 1 GiB, "
        "which it removes. Exit code 1 when a line says fail.",
    )
    parser.add_argument("--path", type=Path, metavar="DIR", help="where the disk tier is to be (tiers.disk.path)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no lines")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look at everything and show it; 1 when something fails."""
    if find_spec("rich") is None:
        raise ConfigError("missing: rich; `pip install rich` brings it")
    from rich.console import Console

    from tenuto.cli.doctor.examination import examine, is_fit
    from tenuto.cli.progress import BytesBar

    path = _folder(args.path)
    with BytesBar(Console(stderr=True)) as bar:
        sections = examine(path, bar.begin, bar.advance)
    is_good = is_fit(sections)
    if args.json:
        found = {section.name: [finding.as_json() for finding in section.findings] for section in sections}
        print(json.dumps({"is_fit": is_good, "path": str(path), "findings": found}, indent=2))
    else:
        show(sections, Console())
    return 0 if is_good else EXIT_UNFIT


def show(sections: list[Section], console: Console) -> None:
    """One line per finding, under headings; the fix stands in the same line."""
    from rich.text import Text

    width = max(len(finding.name) for section in sections for finding in section.findings)
    for section in sections:
        console.print(Text(section.name, style="bold"))
        for finding in section.findings:
            status = finding.status.value
            line = Text("  ").append(f"{status:<4}", style=COLOURS[status])
            line.append(f"  {finding.name:<{width}}  {finding.text}")
            if finding.fix:
                line.append(f"; fix: {finding.fix}")
            console.print(line, soft_wrap=True)


def _folder(given: Path | None) -> Path:
    path = chosen_folder(given, "--path")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"--path: {path} is a file; give the folder that tiers.disk.path names, or will name")
    return path
