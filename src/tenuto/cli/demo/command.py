"""`tenuto demo`: arguments, folders, the two engine processes, the exit code."""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tenuto.cli.demo import model
from tenuto.cli.demo.messages import Begin, Event, Facts, Job, Run
from tenuto.cli.demo.outcome import Outcome
from tenuto.cli.demo.process import run_child
from tenuto.cli.folders import chosen_folder
from tenuto.errors import ConfigError, TenutoError

if TYPE_CHECKING:
    from tenuto.cli.demo.report import Steps

NEEDED = ("vllm", "torch", "transformers", "gguf", "accelerate", "rich")
KV_BYTES = 1_000_000_000
"""Free space that the disk tier needs for the demo's three prompts, generously."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the subcommand `demo`."""
    parser = commands.add_parser(
        "demo",
        help="a real engine gets a real prompt back from host memory and from disk",
        description="Asks a real model in vLLM about a long text: cold, then with the text's keys "
        "and values from host memory, then, in a new process, from disk.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")
    parser.add_argument("--keep", action="store_true", help="leave the disk tier's folder behind")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where model, cache and logs are kept")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 if every hit happened and every answer was the same."""
    _check_packages()
    from rich.console import Console

    from tenuto.cli.demo.report import Steps, show

    with _locked(chosen_folder(args.dir, "--dir", "demo")) as folder:
        with Steps(Console(stderr=True)) as steps:
            outcome = _run_stages(folder, steps, keep=args.keep)
        if args.json:
            print(json.dumps(outcome.as_json()))
        else:
            show(outcome, Console())
    if (fault := outcome.fault()) is not None:
        raise TenutoError(f"{fault}; logs are in {folder}")
    return 0


def _check_packages() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"missing: {', '.join(missing)}; run `make install`, or install the lists in requirements/ with --no-deps"
        )
    model.find_weights()


@contextmanager
def _locked(folder: Path) -> Generator[Path]:
    """One demo per folder at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise ConfigError(f"--dir: cannot write {folder} ({error.strerror}); give another") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--dir: another demo is using {folder}; wait, or give another") from None
        yield folder


def _run_stages(folder: Path, steps: Steps, *, keep: bool) -> Outcome:
    written = model.folder_in(folder)
    kv = folder / "kv"
    shutil.rmtree(kv, ignore_errors=True)  # cold is cold
    _check_space(folder, KV_BYTES + (0 if model.is_written(written) else model.FOLDER_BYTES))

    def events(stage: Literal["model", "first", "second"]) -> Iterator[Event]:
        job = Job(stage=stage, model=str(written), kv=str(kv))
        for event in run_child(job, folder / f"{stage}.log"):
            if isinstance(event, Begin):
                steps.begin(event.what)
            yield event

    try:
        if not model.is_written(written):
            list(events("model"))
        seen = [*events("first"), *events("second")]
    finally:
        if not keep:
            shutil.rmtree(kv, ignore_errors=True)
    facts = next(event for event in seen if isinstance(event, Facts))
    return Outcome(facts, tuple(event for event in seen if isinstance(event, Run)))


def _check_space(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise ConfigError(
            f"--dir: {folder} has {free / 1e9:.1f} GB free, the demo needs "
            f"{needed_bytes / 1e9:.1f} GB; give a folder on another disk"
        )
