"""How far a long start is: a bar on a terminal, else a line in the log now and then."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)

BAR_AFTER_S = 2.0
LINE_EVERY_S = 5.0


class Bar(Protocol):
    """Something that moves on a terminal."""

    def move_to(self, done_bytes: int) -> None:
        """Show so much as done."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class Progress:
    """Shows `total_bytes` of work named `what` once it has taken two seconds. One thread; close it.

    `make_bar` gives None where no bar can be shown; then there is a line in the log every five seconds.
    """

    def __init__(
        self,
        what: str,
        total_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        make_bar: Callable[[str, int], Bar | None] | None = None,
    ) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._clock = clock
        self._make_bar = make_bar or terminal_bar
        self._done_bytes = 0
        self._begun_s = self._line_s = clock()
        self._bar: Bar | None = None
        self._is_shown = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return self._clock() - self._begun_s

    def advance(self, n_bytes: int) -> None:
        """So many bytes more are done."""
        self._done_bytes += n_bytes
        if self.elapsed_s < BAR_AFTER_S:
            return
        if not self._is_shown:
            self._is_shown = True
            self._bar = self._make_bar(self._what, self._total_bytes)
        if self._bar is not None:
            self._bar.move_to(self._done_bytes)
        elif self._clock() - self._line_s >= LINE_EVERY_S:
            self._line_s = self._clock()
            logger.info(
                "tenuto: %s: %.1f of %.1f GiB after %.0f s",
                self._what, self._done_bytes / 2**30, self._total_bytes / 2**30, self.elapsed_s,
            )  # fmt: skip

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class _RichBar:
    def __init__(self, what: str, total_bytes: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._progress = RichProgress(
            TextColumn("{task.description}"), BarColumn(bar_width=30), DownloadColumn(binary_units=True),
            TimeRemainingColumn(), console=Console(stderr=True), transient=True,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._task = self._progress.add_task(what, total=total_bytes)
        self._progress.start()

    def move_to(self, done_bytes: int) -> None:
        self._progress.update(self._task, completed=done_bytes)

    def close(self) -> None:
        self._progress.stop()


def terminal_bar(what: str, total_bytes: int) -> Bar | None:
    """A bar on standard error; None where that is no terminal, or rich is not installed."""
    if not sys.stderr.isatty():
        return None
    try:
        return _RichBar(what, total_bytes)
    except ImportError:
        return None
