"""What a reader has of each stream, and what it has to ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tenuto.events.batch import Batch, Kind, Part


class Standing(Enum):
    """Where a message stands to what a reader has."""

    KNOWN = "known"  #: it has all of it
    NEXT = "next"  #: it goes on from there
    GAP = "gap"  #: something before it is missing
    STALE = "stale"  #: of a publisher that is dead


@dataclass(slots=True)
class Following:
    """Positions by stream. A publisher has one stream at a time: another of the same place ends the one before."""

    _next: dict[bytes, int] = field(default_factory=dict[bytes, int])
    _streams: dict[tuple[str, str, int], bytes] = field(default_factory=dict[tuple[str, str, int], bytes])
    _dead: set[bytes] = field(default_factory=set[bytes])
    _incomplete: set[bytes] = field(default_factory=set[bytes])
    """Streams that have lost something: all else waits for a snapshot."""
    _met: set[bytes] = field(default_factory=set[bytes])

    def place(self, batch: Batch) -> tuple[Standing, Batch]:
        """Where a batch stands, and of it what is new."""
        if not self._is_current(batch):
            return Standing.STALE, batch
        expected = self._next.setdefault(batch.stream, 1)
        if batch.stream in self._incomplete or batch.first > expected:
            return Standing.GAP, batch
        n_known = expected - batch.first
        if not n_known:
            return Standing.NEXT, batch
        return (Standing.NEXT, batch.after(n_known)) if batch.n_events > n_known else (Standing.KNOWN, batch)

    def took(self, message: Batch | Part) -> bool:
        """A message is taken in, unless it is of a publisher that is dead."""
        if not self._is_current(message):
            return False
        if isinstance(message, Batch):
            self._next[message.stream] = message.first + message.n_events
            if any(group.kind == Kind.LOST for group in message.groups):
                self._incomplete.add(message.stream)
        elif message.is_last:
            self._next[message.stream] = message.as_of + 1
            self._incomplete.discard(message.stream)
        else:
            self._incomplete.add(message.stream)  # until the last part is there
        return True

    def wanted(self, stream: bytes) -> int:
        """What to ask for: the next number, or 0 for a snapshot."""
        return 0 if stream in self._incomplete else self._next.get(stream, 1)

    def is_incomplete(self, stream: bytes) -> bool:
        """Whether a snapshot is needed."""
        return stream in self._incomplete

    def meet(self, stream: bytes) -> None:
        """All of a stream up to now is there: what is missing from here on was missed."""
        self._met.add(stream)

    def has_met(self, stream: bytes) -> bool:
        """Whether all of a stream was there once."""
        return stream in self._met

    def _is_current(self, message: Batch | Part) -> bool:
        if message.stream in self._dead:
            return False
        before = self._streams.get(message.source.place)
        if before != message.stream:
            self._streams[message.source.place] = message.stream
            if before is not None:
                self._dead.add(before)
                self._next.pop(before, None)
                self._incomplete.discard(before)
                self._met.discard(before)
        return True
