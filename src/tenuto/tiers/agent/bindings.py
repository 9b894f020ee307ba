"""Which place of which volume a slot is, where that is not the home volume's place of the same number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tenuto.tiers.agent.messages import HOME


class At(NamedTuple):
    """A place of a volume."""

    volume: str
    place: int


class Bindings:
    """Slot s is place s of the home volume until it is bound elsewhere. Not thread-safe: under the agent's lock."""

    def __init__(self, rows: Iterable[tuple[int, At]] = ()) -> None:
        self._at: dict[int, At] = {}
        self._slots: dict[At, int] = {}
        self._reserved: set[At] = set()
        for slot, at in rows:
            self.bind(slot, at)

    def place_of(self, slot: int) -> At | None:
        """Where a slot is; None when the home place of its number is another slot's, or will be."""
        at = self._at.get(slot)
        if at is None:
            home = At(HOME, slot)
            return None if home in self._slots or home in self._reserved else home
        return at

    def bound(self, slot: int) -> At | None:
        """Where a slot is bound to."""
        return self._at.get(slot)

    def slot_at(self, at: At) -> int | None:
        """The slot that is there, if there can be one."""
        slot = self._slots.get(at)
        if slot is None and at.volume == HOME and at.place not in self._at and at not in self._reserved:
            return at.place
        return slot

    def reserve(self, at: At) -> None:
        """No slot is there, and one may be bound to it soon."""
        self._reserved.add(at)

    def give_up(self, at: At) -> None:
        """It is reserved no more."""
        self._reserved.discard(at)

    def bind(self, slot: int, at: At) -> None:
        """The slot is there from now on, and was nowhere else or is there no more."""
        self.unbind(slot)
        if (other := self._slots.get(at)) is not None:
            self.unbind(other)
        if at != (HOME, slot):
            self._at[slot] = at
            self._slots[at] = slot

    def unbind(self, slot: int) -> None:
        """The slot is nowhere of its own any more."""
        at = self._at.pop(slot, None)
        if at is not None:
            del self._slots[at]

    def keep_only(self, slots: Iterable[int]) -> None:
        """Unbind all but these."""
        rows = {slot: self._at[slot] for slot in slots if slot in self._at}
        self._at, self._slots = rows, {at: slot for slot, at in rows.items()}

    def is_reserved(self, at: At) -> bool:
        """See `reserve`."""
        return at in self._reserved

    def rows(self) -> dict[int, At]:
        """Those that are bound."""
        return dict(self._at)
