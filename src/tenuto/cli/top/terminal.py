"""A terminal's second screen: entered, drawn on without flicker, and left as it was."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Self

# Control sequences of ECMA-48 and xterm; a terminal that does not know one ignores it.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # second screen, no cursor, no wrapping
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # what stands between is shown at once
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

_KEYS = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"k": "up", b"\x1b[B": "down", b"\x1bOB": "down", b"j": "down",
    b"\x1b[5~": "page up", b"b": "page up", b"\x1b[6~": "page down", b" ": "page down",
    b"\x1b[H": "home", b"g": "home", b"q": "quit", b"Q": "quit", b"": "quit",
}  # fmt: skip


def is_live() -> bool:
    """Whether standard output is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Terminal:
    """Standard output as a screen, and standard input's keys where that is a terminal. Use it with ``with``.

    On the main thread. It gives the terminal back when it ends, however, and while the process is stopped (Ctrl-Z).
    """

    def __init__(self) -> None:
        self._out = sys.stdout.fileno()
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        sys.stdout.flush()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._waker_before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._handlers: dict[signal.Signals, Any] = {
            signal.SIGWINCH: signal.signal(signal.SIGWINCH, _ignore),
            signal.SIGTSTP: signal.signal(signal.SIGTSTP, self._pause),
        }
        try:
            self._begin()
        except BaseException:  # Ctrl-C came in between
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        interrupts = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        self._finish()
        for number, handler in (self._handlers | interrupts).items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._waker_before)
        os.close(self._woken)
        os.close(self._waker)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in cells, as they are now."""
        try:
            width, height = os.get_terminal_size(self._out)
        except OSError:
            return 80, 24
        return width or 80, height or 24

    def draw(self, lines: Sequence[str]) -> None:
        """Put these lines in the place of what is shown. Raises `OSError` when the terminal is gone."""
        text = f"{_REST_OF_LINE}\n".join(lines)
        self._write(f"{_BEGIN}{_HOME}{text}{_REST_OF_LINE}{_REST_OF_SCREEN}{_END}")

    def wait(self, timeout_s: float) -> list[str]:
        """Keys that were pressed, by name; ends at `timeout_s`, at a key, and when the window has another size."""
        sources = [self._woken] if self._keys is None else [self._woken, self._keys]
        ready = select.select(sources, [], [], max(0.0, timeout_s))[0]
        if self._woken in ready:
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
        if self._keys is None or self._keys not in ready:
            return []
        try:
            data = os.read(self._keys, 1024)
        except OSError:  # the terminal is gone
            data = b""
        return _keys_of(data)

    def _begin(self) -> None:
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSADRAIN)
        self._write(_ENTER)

    def _finish(self) -> None:
        with suppress(OSError):  # it is gone
            self._write(_LEAVE)
        if self._keys is not None and self._before is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def _pause(self, *_: object) -> None:
        """Give the terminal back, stop, and take it again when the process goes on."""
        self._finish()
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # of this thread: it does not run on a little
        self._begin()

    def _write(self, text: str) -> None:
        data = text.encode(sys.stdout.encoding or "utf-8", "replace")
        while data:
            data = data[os.write(self._out, data) :]


def _keys_of(data: bytes) -> list[str]:
    """What is known of what was read; nothing was read when there is no terminal any more."""
    if not data:
        return [_KEYS[data]]
    found: list[str] = []
    while data:
        key = next((key for key in _KEYS if key and data.startswith(key)), data[:1])
        data = data[len(key) :]
        if key in _KEYS:
            found.append(_KEYS[key])
    return found


def _ignore(_: int, __: FrameType | None) -> None:
    """Its being there is enough: a signal that is handled ends `Terminal.wait`."""
