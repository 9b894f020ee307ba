"""The `tenuto` command."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import signal
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress

from tenuto import __version__
from tenuto.cli import config
from tenuto.cli.advisor import command as advisor
from tenuto.cli.bench import command as bench
from tenuto.cli.demo import command as demo
from tenuto.cli.doctor import command as doctor
from tenuto.cli.inspect import command as inspect
from tenuto.cli.serve import command as serve
from tenuto.cli.simulate import command as simulate
from tenuto.cli.top import command as top
from tenuto.cli.trace import command as trace
from tenuto.errors import TenutoError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands; each sets `run`, a function of the parsed arguments."""
    parser = argparse.ArgumentParser(prog="tenuto", description="A KV-cache block manager for LLM inference engines.")
    parser.add_argument("--version", action="version", version=f"tenuto {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve.add_parser(commands)
    config.add_parser(commands)
    demo.add_parser(commands)
    bench.add_parser(commands)
    inspect.add_parser(commands)
    doctor.add_parser(commands)
    top.add_parser(commands)
    trace.add_parser(commands)
    advisor.add_parser(commands)
    simulate.add_parser(commands)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit code. What goes wrong is one line on standard error, each wrong setting another."""
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(_parse(list(sys.argv[1:] if argv is None else argv)))
        finally:
            print(end="", flush=True)  # what standard output refuses is told by us, not when Python ends
    except OSError as error:
        _drop_output()
        if not isinstance(error, BrokenPipeError):  # nobody reads any more: no matter
            _say(f"tenuto: {error.filename or 'standard output'}: {error.strerror or error}")
        return EXIT_FAILED


def _run(args: argparse.Namespace) -> int:
    try:
        with _terminable():
            return args.run(args)
    except TenutoError as error:
        for line in str(error).splitlines():
            _say(f"tenuto {args.command}: {line}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        _say(f"tenuto {args.command}: interrupted")
        return EXIT_INTERRUPTED


@contextmanager
def _terminable() -> Generator[None]:
    """What was begun is ended by SIGTERM as by Ctrl-C, unless somebody hears that signal already."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _say(line: str) -> None:
    with suppress(OSError):  # nobody hears
        print(line, file=sys.stderr)


def _drop_output() -> None:
    """What standard output did not take: Python would try once more at its end."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(argv: list[str]) -> argparse.Namespace:
    """The arguments. What stands behind a -- is `passed_on` as it is, by those subcommands that have such a use."""
    at = argv.index("--") if "--" in argv else len(argv)
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv[:at])
    args.passed_on = argv[at + 1 :]
    hint = getattr(args, "passes_on", None)
    if hint is None:
        unknown += args.passed_on
    if unknown:
        chosen: argparse.ArgumentParser = args.parser
        said = [f"unrecognized arguments: {' '.join(unknown)}", *_suggestions(unknown, chosen.format_help())]
        chosen.error("; ".join([*said, hint] if hint else said))
    return args


def _suggestions(unknown: Sequence[str], text: str) -> Iterator[str]:
    """What may have been meant, of the options in a help text."""
    known = re.findall(r"--[\w.-]+", text)
    for word in unknown:
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, known, n=1) if name.startswith("--") else []
        if near and near[0] != name:
            yield f"did you mean {near[0]}?"


if __name__ == "__main__":
    sys.exit(main())
