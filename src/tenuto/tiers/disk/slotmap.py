"""Which pool file a slot lies in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from tenuto.errors import Cause, StoreError


class SlotMap:
    """Files hold consecutive slots, each as many as it was made with. Grows by one thread, is read by any."""

    def __init__(self, files: Mapping[int, int]) -> None:
        """`files`: slots of each file. Raises `StoreError` (CORRUPT) unless they are numbered 0, 1, 2, ..."""
        if sorted(files) != list(range(len(files))) or not all(n > 0 for n in files.values()):
            raise StoreError(Cause.CORRUPT, "the list of pool files has gaps")
        self._stops = [0]
        for number in range(len(files)):
            self.add(files[number])

    @property
    def n_files(self) -> int:
        """Files there are."""
        return len(self._stops) - 1

    @property
    def n_slots(self) -> int:
        """Slots there are."""
        return self._stops[-1]

    def slots(self, number: int) -> range:
        """The slots of a file."""
        return range(self._stops[number], self._stops[number + 1])

    def add(self, n_slots: int) -> None:
        """One more file."""
        self._stops.append(self._stops[-1] + n_slots)

    def drop_last(self) -> None:
        """One file less."""
        self._stops.pop()

    def cut_last(self, n_slots: int) -> None:
        """The last file has `n_slots` slots from now on."""
        self._stops[-1] = self._stops[-2] + n_slots

    def place(self, slot: int) -> tuple[int, int]:
        """(file, index in it). Raises `StoreError` (MISSING) for a slot that no file has."""
        number = bisect_right(self._stops, slot) - 1
        if not 0 <= number < self.n_files:
            raise StoreError(Cause.MISSING, f"no pool file has slot {slot}")
        return number, slot - self._stops[number]
