"""The server as a child: signals are passed on in the one way that lets its writes end."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from tenuto.errors import TenutoError

_PR_SET_PDEATHSIG = 1
_TICK_S = 0.5
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_server(line: Sequence[str], patience_s: float) -> int:
    """Run a server until it ends; its exit code, 128 + n when signal n killed it.

    Asked to stop, it is killed after `patience_s`: vLLM's front end takes requests until the end, and waits for theirs.

    Ctrl-C in a terminal would reach vLLM's workers too, which then end before the engine has told them what to write.
    So the server is a session of its own, and the first signal that stops us stops its main process alone, which ends
    the others in order; the second one kills them all. If we are killed, the server ends in order by itself.
    """
    server = _Server(patience_s)
    heard = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]  # nohup's SIGHUP
    before = {number: signal.signal(number, server.stop) for number in heard}
    try:
        return server.run(line)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server:
    """A child that can be asked to stop before, while and after it is started."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._kill_at = math.inf
        self._child: subprocess.Popen[bytes] | None = None
        self._n_asked = 0

    def run(self, line: Sequence[str]) -> int:
        libc = ctypes.CDLL(None)
        try:
            self._child = subprocess.Popen(
                line,
                start_new_session=True,
                # Between fork and exec, in a process of one thread.
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509
            )
        except OSError as error:
            raise TenutoError(f"can't start {line[0]}: {error.strerror}") from None
        if self._n_asked:
            self._child.terminate()
        code = self._wait(self._child)
        return code if code >= 0 else 128 - code

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return child.wait(_TICK_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() > self._kill_at:
                    print(f"tenuto serve: not stopped after {self._patience_s:.0f} s: killed", file=sys.stderr)
                    self._kill_at = math.inf
                    self._kill(child)

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._n_asked += 1
        if self._n_asked == 1:
            self._kill_at = time.monotonic() + self._patience_s
        if self._child is None:
            return
        if self._n_asked == 1:
            self._child.terminate()
            with suppress(OSError):  # nobody hears: the terminal is gone
                print(
                    "tenuto serve: stopping, once what is on its way to disk is written; again: at once",
                    file=sys.stderr,
                )
        else:
            self._kill(self._child)
