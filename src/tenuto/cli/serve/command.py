"""`tenuto serve MODEL [settings] [-- vLLM options]`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

import msgspec

from tenuto.cli.memory import too_much_memory
from tenuto.cli.options import add_setting_options, check_plugins, read_sources
from tenuto.cli.serve.line import find_program, make_line, read_patience
from tenuto.cli.serve.process import run_server
from tenuto.errors import ConfigError
from tenuto.settings import DEFAULT, combine, flatten, nest


def usable_folder(folder: Path, setting: str) -> str:
    """Its name. Raises `ConfigError` for one of no use."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"{setting}: {there} is no folder; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{setting}: can't write to {there}; choose another folder, or get the right to")
    return str(folder)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the subcommand `serve`."""
    parser = commands.add_parser(
        "serve",
        allow_abbrev=False,
        usage="tenuto serve MODEL [--host-memory SIZE] [--disk FOLDER] [settings] [-- vLLM options]",
        help="start vLLM's OpenAI-compatible server with tenuto set up",
        description="Shows the `vllm serve` line that does the same, and runs it. Ctrl-C or SIGTERM stops it once what "
        "is on its way to disk is written.",
        epilog="What stands behind -- goes to vLLM as it is: tenuto serve MODEL --disk /var/tmp/kv -- --port 8000",
    )
    parser.add_argument("model", metavar="MODEL", help="name or folder, as for vllm serve")
    parser.add_argument("--dry-run", action="store_true", help="only show the line")
    add_setting_options(parser)
    parser.set_defaults(run=run, passes_on="vLLM's own options go behind a --, after tenuto's")


def run(args: argparse.Namespace) -> int:
    """Show the line and run it: the server's exit code. Raises `ConfigError` for wrong settings or a missing vLLM."""
    settings = combine(read_sources(args))
    for warning in [*check_plugins(settings), *too_much_memory(settings)]:
        print(f"tenuto serve: warning: {warning}", file=sys.stderr)
    values = flatten(msgspec.to_builtins(settings.config))
    if values["tiers.disk.path"]:
        from tenuto.tiers.disk.volume import volume_of  # half of a command's start otherwise

        volume = volume_of(settings.config.tiers.disk)  # whole names, so that the line means them everywhere
        values["tiers.disk.path"] = usable_folder(volume.root, "tiers.disk.path")
        values["tiers.disk.stripes"] = [usable_folder(folder, "tiers.disk.stripes") for folder in volume.others]
    given = {name: values[name] for name, place in settings.places.items() if place != DEFAULT}
    line = make_line(find_program(args.model), nest(given), args.passed_on, settings.config.runtime.shutdown_timeout_s)
    print(shlex.join(line), flush=True)
    return 0 if args.dry_run else run_server(line, read_patience(line))
