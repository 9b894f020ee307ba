"""The encoded batches of a stream: what is still to be sent, and what can be sent again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

_SWEEP = 1024  # entries that are dropped from the list together


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch: events `first` ≤ n < `end`; `told_at` is when the first of them became known."""

    first: int
    end: int
    payload: bytes
    told_at: float


class History:
    """The last batches, `most_bytes` of them at most. Numbers follow each other without a gap, from `first` on."""

    def __init__(self, most_bytes: int, first: int = 1) -> None:
        self.end = first
        """The number that comes next."""
        self._most_bytes = most_bytes
        self._n_bytes = 0
        self._entries: list[Entry] = []
        self._start = 0  # of those in the list, the first that counts
        self._dropped = 0  # that are not in the list any more
        self._sent = 0  # place of the first entry that is not sent, counted from the stream's beginning

    def add(self, payload: bytes, n_events: int, told_at: float) -> None:
        """The next batch; old ones go to make room, also when they were not sent."""
        self._entries.append(Entry(self.end, self.end + n_events, payload, told_at))
        self.end += n_events
        self._n_bytes += len(payload)
        while self._n_bytes > self._most_bytes and len(self._entries) - self._start > 1:
            self._n_bytes -= len(self._entries[self._start].payload)
            self._start += 1
        if self._start >= _SWEEP:
            del self._entries[: self._start]
            self._dropped += self._start
            self._start = 0

    def unsent(self, most_entries: int, most_bytes: int) -> list[Entry]:
        """The next entries to be sent."""
        at = max(self._sent - self._dropped, self._start)
        found: list[Entry] = []
        n_bytes = 0
        for entry in self._entries[at : at + most_entries]:
            n_bytes += len(entry.payload)
            if found and n_bytes > most_bytes:
                break
            found.append(entry)
        return found

    def mark_sent(self, n_entries: int) -> None:
        """So many more were sent."""
        self._sent = max(self._sent, self._dropped + self._start) + n_entries

    @property
    def oldest_unsent(self) -> Entry | None:
        """What waits longest."""
        waiting = self.unsent(1, 0)
        return waiting[0] if waiting else None

    def since(self, number: int) -> Iterator[Entry] | None:
        """Those that hold `number` and all behind, perhaps none; None when they are not all there.

        Ends early where it was so slow that they are gone.
        """
        entries = self._entries
        if number == self.end:
            return iter(())
        if self._start == len(entries) or not entries[self._start].first <= number < self.end:
            return None
        at = bisect_right(entries, number, lo=self._start, key=lambda entry: entry.first) - 1
        return self._from(self._dropped + at)

    def _from(self, place: int) -> Iterator[Entry]:
        while self._dropped + self._start <= place < self._dropped + len(self._entries):
            yield self._entries[place - self._dropped]
            place += 1
