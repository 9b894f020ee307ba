"""The kernel's own queue of reads and writes (Linux AIO), by its system calls.

Source: the manual pages io_setup(2), io_submit(2), io_getevents(2) and io_destroy(2), and linux/aio_abi.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

Call = Callable[..., int]
"""A system call by its number, with up to five whole numbers: its result, or an error's number below 0."""

MOST_PARTS = 1024
"""Pieces of memory of one command (IOV_MAX)."""
WOKEN = 0
"""The token of the events that `Aio.wake` makes."""

_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_PREAD, _PWRITE, _PREADV, _PWRITEV = 0, 1, 7, 8
_COMMAND_WORDS, _EVENT_WORDS = 8, 4
_MOST_EVENTS = 64
_TRIAL_S = 1.0


class Command(NamedTuple):
    """A read or write of `parts`, (address, bytes) each, at most `MOST_PARTS`. `token`: more than 0, comes back."""

    token: int
    is_write: bool
    fd: int
    offset: int
    parts: Sequence[tuple[int, int]]


class Aio:
    """One queue of the kernel. Thread-safe. Memory and descriptors of a command stay until its event has come.

    `n_events` is how many commands may be under way. `call`: a kernel for tests. Raises `OSError` where there is no
    such queue to be had: ENOSYS on other systems and machines.
    """

    def __init__(self, n_events: int, call: Call | None = None) -> None:
        numbers = _NUMBERS.get(platform.machine())
        if sys.platform != "linux" or numbers is None or struct.calcsize("P") != 8:
            raise OSError(errno.ENOSYS, "kernel AIO is known for Linux on x86-64 and aarch64 alone")
        setup, self._destroy, self._get, self._queue = numbers
        self._call = call or _system_call()
        with ExitStack() as undo:
            self._null_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, self._null_fd)
            made = array("Q", [0])
            self._checked(setup, n_events, made.buffer_info()[0])
            self._context = made[0]
            undo.callback(self._checked, self._destroy, self._context)
            self._try_out()
            undo.pop_all()

    def submit(self, commands: Sequence[Command]) -> int:
        """Queue commands in order; how many were taken, at least one.

        Raises `OSError` when the first was not: `BlockingIOError` while as many are under way as may be.
        """
        words = array("Q")
        kept: list[array[int]] = []
        for token, is_write, fd, offset, parts in commands:
            if len(parts) == 1:
                code, (address, n) = _PWRITE if is_write else _PREAD, parts[0]
            else:
                code, n = _PWRITEV if is_write else _PREADV, len(parts)
                kept.append(array("Q", [word for part in parts for word in part]))
                address = kept[-1].buffer_info()[0]
            words.extend((token, 0, code | fd << 32, address, n, offset, 0, 0))
        first, step = words.buffer_info()[0], 8 * _COMMAND_WORDS
        pointers = array("Q", range(first, first + step * len(commands), step))
        return self._checked(self._queue, self._context, len(commands), pointers.buffer_info()[0])

    def wait(self, n_least: int, timeout_s: float | None) -> list[tuple[int, int]]:
        """Token and result of commands that have ended: `n_least` or more, fewer after the time.

        A result is the bytes that moved, or an error's number below 0. Raises `OSError`.
        """
        events = array("q", bytes(8 * _EVENT_WORDS * _MOST_EVENTS))
        until = array("q", (0, 0) if timeout_s is None else divmod(int(timeout_s * 1e9), 10**9))
        at = 0 if timeout_s is None else until.buffer_info()[0]
        try:
            n = self._checked(self._get, self._context, n_least, _MOST_EVENTS, events.buffer_info()[0], at)
        except InterruptedError:
            return []
        stop = n * _EVENT_WORDS
        return list(zip(events[0:stop:_EVENT_WORDS], events[2:stop:_EVENT_WORDS], strict=True))

    def wake(self) -> None:
        """Make an event with the token `WOKEN`, for one that waits."""
        self.submit([Command(WOKEN, False, self._null_fd, 0, ((0, 0),))])

    def close(self) -> None:
        """Give the queue back; waits for what is under way. Nobody may be in a call, or make one afterwards."""
        self._checked(self._destroy, self._context)
        os.close(self._null_fd)

    def _try_out(self) -> None:
        """A container's rules may allow `io_setup` alone: nobody would hear how a command ends."""
        deadline = time.monotonic() + _TRIAL_S
        self.wake()
        while not self.wait(1, _TRIAL_S):
            if time.monotonic() > deadline:
                raise OSError(errno.ENOSYS, "kernel AIO: a read of nothing does not end")

    def _checked(self, *args: int) -> int:
        result = self._call(*args)
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result


def _system_call() -> Call:
    function = ctypes.CDLL(None, use_errno=True)["syscall"]
    function.argtypes = [ctypes.c_long] * 6
    function.restype = ctypes.c_long

    def call(number: int, *args: int) -> int:
        result: int = function(number, *args, *_ZEROS[len(args) :])
        return result if result >= 0 else -ctypes.get_errno()

    return call


_ZEROS = (0, 0, 0, 0, 0)
