"""What an engine's memory can be asked for, wherever it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tenuto.memory.pages import PageRun


class Landing(Protocol):
    """Copies out of the engine's memory that were queued."""

    @property
    def has_ended(self) -> bool:
        """Whether the bytes are there already."""
        ...

    def wait(self) -> None:
        """Until they are. Not on the engine's thread."""
        ...


class _Landed:
    """Nothing to wait for."""

    has_ended = True

    def wait(self) -> None:
        """At once."""


LANDED = _Landed()

Mark = Any
"""A moment in the engine's computing, made by `Device.mark`."""


class Device(Protocol):
    """The engine's paged memory. `gather`, `settle` and `mark` are called on the engine's thread and don't wait."""

    def gather(self, runs: Sequence[PageRun], slots: Sequence[int]) -> Landing:
        """Queue copies of pages into host slots, behind what the engine has queued."""
        ...

    def settle(self) -> None:
        """What the engine queues from now on comes after the reading of all gathers so far."""
        ...

    def mark(self) -> Mark:
        """All that the engine and our gathers have queued so far, for a `scatter` to come after."""
        ...

    def scatter(self, runs: Sequence[PageRun], slots: Sequence[int], after: Mark) -> None:
        """Copy host slots into pages, once what `after` marks has ended; they hold the bytes when this returns."""
        ...
