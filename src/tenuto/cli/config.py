"""`tenuto config`: the effective settings as TOML, and where each comes from."""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from tenuto.cli.memory import too_much_memory
from tenuto.cli.options import add_setting_options, check_plugins, read_sources
from tenuto.cli.wording import is_encodable
from tenuto.config import leaves
from tenuto.settings import Settings, combine, flatten


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the subcommand `config`."""
    parser = commands.add_parser(
        "config",
        allow_abbrev=False,
        help="show the effective settings, and where each comes from",
        description="Checks a file and options, and shows the settings they give as a TOML file: each with the place "
        "it comes from. Starts nothing. The exit code is 1 when a setting is wrong.",
    )
    add_setting_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the settings; 0. Raises `ConfigError` for wrong ones."""
    settings = combine(read_sources(args))
    for line in [*check_plugins(settings), *too_much_memory(settings)]:
        print(f"tenuto config: warning: {line}", file=sys.stderr)
    print(to_toml(settings))
    return 0


def to_toml(settings: Settings) -> str:
    """A TOML file that gives these settings, with the place of each as a remark."""
    values = flatten(msgspec.to_builtins(settings.config))
    lines: list[str] = []
    table = ""
    for leaf in leaves():
        group, _, key = leaf.name.rpartition(".")
        if group != table:
            table = group
            lines += ["", f"[{table}]"] if lines else [f"[{table}]"]
        lines.append(f"{f'{key} = {_literal(values[leaf.name])}':<32}  # {settings.places[leaf.name]}")
    return "\n".join(lines)


def _literal(value: str | int | float | bool) -> str:
    """TOML's strings, numbers and truths are JSON's, but for what it, or standard output, does not take bare."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c != "\x7f" and is_encodable(c) else f"\\U{ord(c):08x}" for c in text)
