"""The server as a child: signals are passed on in the one way that lets its writes end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from tenuto.errors import TenutoError

_PR_SET_PDEATHSIG = 1
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_server(line: Sequence[str]) -> int:
    """Run a server until it ends; its exit code, 128 + n when signal n killed it.

    Ctrl-C in a terminal would reach vLLM's workers too, which then end before the engine has told them what to write.
    So the server is a session of its own, and the first signal that stops us stops its main process alone, which ends
    the others in order; the second one kills them all. If we are killed, the server ends in order by itself.
    """
    server = _Server()
    heard = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]  # nohup's SIGHUP
    before = {number: signal.signal(number, server.stop) for number in heard}
    try:
        return server.run(line)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server:
    """A child that can be asked to stop before, while and after it is started."""

    def __init__(self) -> None:
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
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._n_asked += 1
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
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
