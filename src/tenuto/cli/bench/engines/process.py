"""The parent's side of an engine in another process: started, asked, ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from tenuto.cli.bench.engines.messages import (
    Ask,
    Asked,
    Done,
    Forget,
    Ready,
    Request,
    Serve,
    Settle,
    Start,
    Stop,
    Window,
    Wire,
    Wired,
    decode_reply,
    encode,
)
from tenuto.cli.bench.engines.traffic import Traffic
from tenuto.cli.children import ENGINE_SETTINGS, kill_group, killed_after
from tenuto.errors import TenutoError

COMMAND = (sys.executable, "-m", "tenuto.cli.bench.engines.child")
START_TIMEOUT_S = 540.0
ANSWER_TIMEOUT_S = 150.0
END_TIMEOUT_S = 25.0
_KILL_TIMEOUT_S = 10.0
_LOG_LINES = 25

R = TypeVar("R")

_ERROR = re.compile(r"(\[rank\d+\]: |\S+ \S+ \[\S+\] )?[\w.]+(Error|Exception|Interrupt)\b")
"""The last line of a traceback; engines may go on talking after it."""


def child_environment(parent: Mapping[str, str], n_engines: int) -> dict[str, str]:
    """The parent's environment with the engine's settings; what the user set stays.

    OpenMP threads of an engine that has no turn spin a while, so each engine has its share of the cores alone.
    """
    share = max(1, len(os.sched_getaffinity(0)) // (n_engines + 1))
    return {**ENGINE_SETTINGS, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": str(share), **parent}


class Child:
    """One engine. Its log is `log`; every method raises `TenutoError` with the log's error when the engine fails."""

    def __init__(self, name: str, log: Path, environment: Mapping[str, str]) -> None:
        self.name, self._log_path = name, log
        try:
            self._log: IO[bytes] = log.open("wb")
            # A session of its own: Ctrl-C reaches the parent alone, which then ends the child's group.
            self._process = subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
                env=dict(environment), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise TenutoError(f"engine {name}: can't be started: {error.strerror or error}") from None

    def begin(self, start: Start) -> None:
        """Have the engine made; `wait_ready` waits for it."""
        self._send(start)

    def wait_ready(self) -> Ready:
        """What the engine is, as soon as it is there."""
        return self._receive(Ready, START_TIMEOUT_S)

    def ask(
        self, seed: int, n_tokens: int, shared_seed: int = 0, n_shared: int = 0, *, is_traced: bool = False
    ) -> Asked:
        """One prompt, of which `n_shared` tokens are those of another seed; `is_traced`: with its spans."""
        return self._call(Ask(seed, n_tokens, shared_seed, n_shared, is_traced), Asked)

    def forget(self) -> None:
        """Empty the engine's own prefix cache."""
        self._call(Forget(), Done)

    def settle(self) -> float:
        """Wait until nothing is on its way; the seconds that took."""
        return self._call(Settle(), Done).seconds

    def wire(self, n_bytes: int) -> list[float]:
        """Bytes per second of a few pinned copies to the device."""
        return self._call(Wire(n_bytes), Wired).bytes_per_s

    def serve(self, traffic: Traffic) -> Window:
        """Traffic to its end."""
        return self._call(Serve(traffic), Window)

    def close(self, timeout_s: float = END_TIMEOUT_S) -> bool:
        """End it: asked to, then by force, with all that it started. Whether asking was enough, within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        try:
            with suppress(TenutoError, subprocess.TimeoutExpired):
                if timeout_s > 0 and self._process.poll() is None:
                    self._send(Stop())
                    self._receive(Done, timeout_s)
                self._process.wait(max(0.0, deadline - time.monotonic()))
            return self._process.poll() not in {None, -signal.SIGKILL}
        finally:  # a second Ctrl-C ends the waiting, not the killing
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_TIMEOUT_S)
            for stream in (self._process.stdin, self._process.stdout, self._log):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()

    def kill(self) -> None:
        """End it at once, with all that it has started; also while another thread waits for it."""
        kill_group(self._process)

    def log_tail(self) -> list[str]:
        """The last lines of its log."""
        return self._log_path.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:]

    def _call(self, request: Request, kind: type[R]) -> R:
        self._send(request)
        return self._receive(kind, ANSWER_TIMEOUT_S)

    def _send(self, request: Request) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure() from None

    def _receive(self, kind: type[R], timeout_s: float) -> R:
        assert self._process.stdout is not None
        with killed_after(self._process, timeout_s) as expired:
            line = self._process.stdout.readline()
        if expired.is_set():
            raise TenutoError(f"engine {self.name}: no answer in {timeout_s:.0f} s; its log ends {self._last_line()!r}")
        if not line:
            raise self._failure()
        try:
            reply = decode_reply(line)
        except msgspec.DecodeError:
            raise TenutoError(f"engine {self.name} said {line!r}") from None
        if not isinstance(reply, kind):
            raise TenutoError(f"engine {self.name} answered {line!r}, not {kind.__name__}")
        return reply

    def _failure(self) -> TenutoError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT_S / 4)
        return TenutoError(f"engine {self.name} ended (code {self._process.poll()}): {self._last_line()}")

    def _last_line(self) -> str:
        lines = [line.strip() for line in self._log_path.read_text("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)]
        return (errors or lines or ["nothing"])[-1][:400]
