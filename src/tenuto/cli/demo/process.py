"""Child processes of the demo: started, listened to, and ended whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tenuto.cli.children import ENGINE_SETTINGS, kill_group, killed_after
from tenuto.cli.demo.messages import Event, Job, decode_event, encode
from tenuto.errors import TenutoError

STAGE_TIMEOUT_S = 1200.0
"""No stage of the demo takes this long; a child that does is killed."""
END_TIMEOUT_S = 10.0

_ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]+(Error|Exception|Interrupt): ")
"""The last line of a traceback; engines may go on talking after it."""


def child_environment(parent: Mapping[str, str]) -> dict[str, str]:
    """The parent's environment with the engine's settings; what the user set stays.

    One core is left to the copies and to the rest of the machine: OpenMP threads that share a core
    spin against each other, and the measured times would be those of the scheduler.
    """
    cores = len(os.sched_getaffinity(0))
    defaults = ENGINE_SETTINGS | {"OMP_NUM_THREADS": str(max(1, cores - 1))}
    return {**defaults, **parent}


def run_child(job: Job, log: Path) -> Iterator[Event]:
    """Events of one stage as they come; raises `TenutoError` if the child fails.

    The child's standard error goes to `log`. Leaving the iterator early ends the child.
    """
    command = [sys.executable, "-m", "tenuto.cli.demo.child", encode(job)]
    with (
        log.open("wb") as errors,
        _started(command, errors.fileno()) as child,
        killed_after(child, STAGE_TIMEOUT_S) as expired,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            try:
                yield decode_event(line)
            except msgspec.DecodeError:
                raise TenutoError(f"stage {job.stage} said {line!r}; see {log}") from None
        code = child.wait()
        if expired.is_set():
            raise TenutoError(f"stage {job.stage} took more than {STAGE_TIMEOUT_S:.0f} s; see {log}")
    if code != 0:
        raise TenutoError(f"stage {job.stage} {_why(code, log)}; see {log}")


def _why(code: int, log: Path) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    said = f": {(errors or lines)[-1].strip()[:300]}" if lines else ""
    return f"failed with exit code {code}{said}"


@contextmanager
def _started(command: list[str], errors: int) -> Generator[subprocess.Popen[str]]:
    # A session of its own: Ctrl-C reaches the parent alone, which then ends the child's group.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=child_environment(os.environ),
        start_new_session=True,
    )
    try:
        yield child
    finally:
        try:
            if child.poll() is None:
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(child.pid, signal.SIGTERM)
                    child.wait(END_TIMEOUT_S)
        finally:  # a second Ctrl-C ends the waiting, not the killing
            kill_group(child)
            with suppress(subprocess.TimeoutExpired):
                child.wait(END_TIMEOUT_S)
        if child.stdout is not None:
            child.stdout.close()
