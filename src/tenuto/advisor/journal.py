"""Orders as they are told: the last ones, a file, a line a minute."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tenuto.advisor.core import Task
from tenuto.advisor.orders import Compact, Drop
from tenuto.errors import ConfigError

logger = logging.getLogger(__name__)

_MOST_ORDERS = 1000
_SUMMARY_S = 60.0


class Journal:
    """`is_dry_run`: each order is a line of the log, too. Raises `ConfigError` for a file that can't be written."""

    def __init__(self, log_file: str, *, is_dry_run: bool, now_s: float) -> None:
        self.orders: deque[dict[str, Any]] = deque(maxlen=_MOST_ORDERS)
        self._file = _opened(log_file)
        self._is_dry_run = is_dry_run
        self._counts: Counter[str] = Counter()
        self._summary_at_s = now_s + _SUMMARY_S

    def note(self, note: Mapping[str, Any], task: Task) -> None:
        """An order has ended; `note`: what is told of it."""
        self.orders.append(dict(note))
        line = msgspec.json.encode(note)
        if self._is_dry_run:
            logger.info("tenuto: %s", line.decode())
        if self._file is not None:
            with suppress(OSError):  # a full disk costs lines alone
                self._file.write(line + b"\n")
        if isinstance(task.order, Compact):
            self._counts["compacted"] += 1
        elif isinstance(task.order, Drop):
            self._counts["dropped"] += note.get("n_dropped", 0)
        else:
            self._counts["moved up" if task.is_up else "moved down"] += note.get("n_moved", 0)
            self._counts["refused"] += note.get("n_refused", 0)
        self._counts["failed"] += "error" in note

    def summarize(self, now_s: float) -> None:
        """A line of what was done in the last minute, if there was anything."""
        if now_s < self._summary_at_s:
            return
        self._summary_at_s = now_s + _SUMMARY_S
        said = ", ".join(f"{n} {what}" for what, n in self._counts.items() if n)
        self._counts.clear()
        if said and not self._is_dry_run:
            logger.info("tenuto: in the last minute: %s", said)

    def close(self) -> None:
        """End."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


def _opened(log_file: str) -> BinaryIO | None:
    try:  # without a buffer, which a full disk would leave to be written at the end
        return Path(log_file).open("ab", buffering=0) if log_file else None
    except OSError as error:
        raise ConfigError(f"log_file: can't write {log_file} ({error.strerror}); give another file") from None
