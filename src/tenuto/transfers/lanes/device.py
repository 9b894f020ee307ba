"""What an engine's memory can be asked for, wherever it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tenuto.memory.pages import PageRun


class Landing(Protocol):
    """Copies out of the engine's memory, or into it, that were queued."""

    @property
    def has_ended(self) -> bool:
        """Whether the bytes are there already."""
        ...

    def wait(self) -> None:
        """Until they are. Not on the engine's thread."""
        ...

    def fence(self) -> None:
        """What the engine queues from now on comes after these copies. On the engine's thread; doesn't wait."""
        ...


class _Landed:
    """Nothing to wait for."""

    has_ended = True

    def wait(self) -> None:
        """At once."""

    def fence(self) -> None:
        """It does."""


LANDED = _Landed()
"""A landing that has come down: nothing is left to wait for."""

Mark = Any
"""A moment in the engine's computing, made by `Device.mark`."""


Layers = tuple[int, int]
"""A half-open range that counts from an extent's first layer."""


class Device(Protocol):
    """The engine's paged memory. `gather`, `settle` and `mark` are called on the engine's thread and don't wait."""

    def gather(self, runs: Sequence[PageRun], slots: Sequence[int], layers: Layers | None = None) -> Landing:
        """Queue copies of pages into host slots, all layers or some, behind what the engine has queued."""
        ...

    def settle(self) -> None:
        """What the engine queues from now on comes after the reading of all gathers so far."""
        ...

    def mark(self) -> Mark:
        """All that the engine and our gathers have queued so far, for a scatter to come after."""
        ...

    def scatter(
        self, runs: Sequence[PageRun], slots: Sequence[int], after: Mark, layers: Layers | None = None
    ) -> Landing:
        """Queue copies of host slots into pages, all layers or some, once what `after` marks has ended."""
        ...
