"""What a way to others can do, on either side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Delivery(Enum):
    """What became of one message of an answer."""

    DONE = "done"
    LATER = "later"  #: no room now
    GONE = "gone"  #: who asked is not there any more


@dataclass(frozen=True, slots=True)
class Question:
    """Somebody asks for the events from `first` on (0: for a snapshot), or with None for a heartbeat alone."""

    first: int | None
    asker: object = None
    """Known to the way."""


class Sender(Protocol):
    """A publisher's side. All on one thread, but `wake`; nothing raises for a broker or a reader that is away."""

    def open(self, stream: bytes) -> None:
        """Begin, on whatever thread, for this stream. Raises `ConfigError` when the address can't be had."""
        ...

    def wait(self, timeout_s: float) -> list[Question]:
        """What was asked; waits for it until `wake`, until a way that was closed is open, or for `timeout_s`."""
        ...

    def wake(self) -> None:
        """End `wait`, from any thread."""
        ...

    def send(self, batches: Sequence[tuple[int, bytes]]) -> int:
        """Send (first, batch) to all readers; how many of them, from the first on, are on their way."""
        ...

    def answer(self, asker: object, first: int, payload: bytes | None) -> Delivery:
        """Send one message to who asked; None: there are no more."""
        ...

    def close(self, timeout_s: float) -> None:
        """Send what was given, within `timeout_s`, and end."""
        ...


class Receiver(Protocol):
    """A reader's side, on one thread. Nothing raises for a publisher or a broker that is away."""

    def receive(self, timeout_s: float) -> bytes | None:
        """The next message to all readers; None when there is none in time."""
        ...

    def ask(self, stream: bytes | None, first: int, timeout_s: float) -> Iterator[bytes]:
        """The answer to a question for events from `first` on; 0: for a snapshot. `stream` None: of whoever is there.

        Raises `TimeoutError` when `timeout_s` passes without a message before it is whole.
        """
        ...

    def close(self) -> None:
        """End."""
        ...
