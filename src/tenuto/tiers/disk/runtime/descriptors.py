"""Open descriptors, a bounded number of them, however many files are in use."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk.runtime.contract import File

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Descriptor:
    """One that is open, and how many use it."""

    fd: int
    n_users: int = 0
    is_doomed: bool = False


class Descriptors:
    """Files open when they are used; the one used longest ago closes when there are more than `max_open`.

    One in use is never closed: with more users than `max_open` there are as many as users. `closing` is told of each
    descriptor before it closes.
    """

    def __init__(
        self, open_file: Callable[[File], int], max_open: int, closing: Callable[[int], None] | None = None
    ) -> None:
        self._open_file = open_file
        self._closing = closing
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Descriptor] = OrderedDict()
        self._is_closed = False

    @contextmanager
    def use(self, file: File) -> Generator[int]:
        """Its descriptor, as long as it is needed. Raises `OSError`, and `StoreError` when closed."""
        found = self.take(file)
        try:
            yield found.fd
        finally:
            self.give_back(found)

    def take(self, file: File) -> Descriptor:
        """Its descriptor; `give_back` it. Raises `OSError`, and `StoreError` when closed."""
        with self._lock:
            if self._is_closed:
                raise StoreError(Cause.MISSING, f"{file.name}: its folder is closed")
            found = self._open.get(file.number)
            if found is None:
                found = self._open[file.number] = Descriptor(self._opened(file))
            else:
                self._open.move_to_end(file.number)
            found.n_users += 1
            spare = self._spare()
        self._close(spare)
        return found

    def give_back(self, taken: Descriptor) -> None:
        """It is needed no more, by this user."""
        with self._lock:
            taken.n_users -= 1
            idle = self._spare()
            if taken.is_doomed and not taken.n_users:
                idle.append(taken.fd)
        self._close(idle)

    def forget(self, file: File) -> None:
        """Close it, once nobody uses it."""
        with self._lock:
            found = self._open.pop(file.number, None)
            is_idle = found is not None and self._doom(found)
        if found is not None and is_idle:
            self._close([found.fd])

    def close(self) -> None:
        """Close all; what is in use closes when it is not any more."""
        with self._lock:
            self._is_closed = True
            idle = [found.fd for found in self._open.values() if self._doom(found)]
            self._open.clear()
        self._close(idle)

    def _opened(self, file: File) -> int:
        """With fewer open from now on where this process may have no more; the lock is held."""
        try:
            return self._open_file(file)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self._max_open = max(1, len(self._open) // 2)
        self._close(self._spare())
        return self._open_file(file)

    def _doom(self, found: Descriptor) -> bool:
        """Whether it can be closed at once."""
        found.is_doomed = True
        return not found.n_users

    def _spare(self) -> list[int]:
        """What is too much, taken out; the lock is held."""
        n_spare = len(self._open) - self._max_open
        if n_spare <= 0:
            return []
        idle = [number for number, found in self._open.items() if not found.n_users][:n_spare]
        return [self._open.pop(number).fd for number in idle]

    def _close(self, fds: list[int]) -> None:
        for fd in fds:
            if self._closing is not None:
                self._closing(fd)
            try:
                os.close(fd)
            except OSError as error:  # closed all the same; some networks tell here of errors of long ago
                logger.debug("closing a file: %s", error)
