"""The `tenuto` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tenuto import __version__
from tenuto.cli.bench import command as bench
from tenuto.cli.demo import command as demo
from tenuto.cli.doctor import command as doctor
from tenuto.cli.inspect import command as inspect
from tenuto.errors import TenutoError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands; each sets `run`, a function of the parsed arguments."""
    parser = argparse.ArgumentParser(prog="tenuto", description="A KV-cache block manager for LLM inference engines.")
    parser.add_argument("--version", action="version", version=f"tenuto {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo.add_parser(commands)
    bench.add_parser(commands)
    inspect.add_parser(commands)
    doctor.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit code. What goes wrong is one line on standard error."""
    args = build_parser().parse_args(argv)
    try:
        return args.run(args)
    except TenutoError as error:
        print(f"tenuto {args.command}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(f"tenuto {args.command}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
