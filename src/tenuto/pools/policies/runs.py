"""Blocks that were used together, as one thing: a tree of runs of slots."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

LONGEST = 4096
"""Blocks of a run: so that taking its end away costs little."""


class Run:
    """Slots of consecutive blocks of one chain, which were used at the same times.

    Children continue its last block. `uses`: how often it was used, 0 while its first use is not over; `group`: of its
    request, see `reuse`; `is_end`: its last block was the last of a request.
    """

    __slots__ = ("depth", "group", "is_end", "is_leased", "n_children", "parent", "slots", "ticket", "used_at", "uses")

    def __init__(self, slots: array[int], parent: Run | None, depth: int) -> None:
        self.slots = slots
        self.parent = parent
        self.depth = depth
        """Blocks of the chain before it, as far as they are here."""
        self.n_children = 0
        self.uses = self.used_at = self.group = 0
        self.is_end = False
        self.is_leased = False
        self.ticket = 0
        """Of its last entry in a queue; 0: in none."""

    @property
    def is_leaf(self) -> bool:
        """Whether its last block can go now."""
        return not self.n_children and not self.is_leased and len(self.slots) > 0


class RunTree:
    """Which run each slot is in. A radix tree (as SGLang's, Zheng et al., NeurIPS 2024), cut where uses differ.

    A chain loses its end before its beginning, so a run is shortened at its end, and gone when it is empty. Work is
    done by runs, of which a request has few, and not by blocks.
    """

    def __init__(self) -> None:
        self._of: list[Run | None] = []

    def grow(self, n_slots: int) -> None:
        """There are `n_slots` slots from now on."""
        self._of += [None] * (n_slots - len(self._of))

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Run]:
        """All runs, in the order of their lowest slots."""
        return iter({id(run): run for run in self._of if run is not None}.values())

    def __contains__(self, slot: int) -> bool:
        return self._of[slot] is not None

    def has_any(self, slots: array[int]) -> bool:
        """Whether any of these is in a run."""
        return any(map(self._of.__getitem__, slots))

    def pieces(self, slots: array[int]) -> list[tuple[Run | None, int, int]]:
        """Slots in chain order as runs of exactly these, cut out of larger ones, and stretches that are in none."""
        found: list[tuple[Run | None, int, int]] = []
        of, n, begin = self._of, len(slots), 0
        while begin < n:
            run = of[slots[begin]]
            end = begin + 1
            if run is None:
                while end < n and of[slots[end]] is None:
                    end += 1
            else:
                first = 0 if run.slots[0] == slots[begin] else run.slots.index(slots[begin])
                end = begin + min(len(run.slots) - first, n - begin)
                if run.slots[first : first + end - begin] != slots[begin:end]:
                    end = begin + 1
                    while run.slots[first + end - begin] == slots[end]:
                        end += 1
                run = self._cut(run, first, first + end - begin)
            found.append((run, begin, end))
            begin = end
        return found

    def ending_at(self, slot: int) -> Run:
        """The run that ends with this slot; one that is leased and was never used where the slot is in none."""
        run = self._of[slot]
        if run is None:
            run = self.add(array("i", [slot]), None)
            run.is_leased = True
        elif run.slots[-1] != slot:
            run = self._cut(run, 0, run.slots.index(slot) + 1)
        return run

    def add(self, slots: array[int], parent: Run | None) -> Run:
        """A new run, which continues that one."""
        depth = 0
        if parent is not None:
            depth = parent.depth + len(parent.slots)
            parent.n_children, parent.ticket = parent.n_children + 1, 0
        run = Run(slots, parent, depth)
        self._name(slots, run)
        return run

    def may_extend(self, run: Run) -> bool:
        """Whether new blocks may become part of a run that they continue."""
        return run.is_leaf and len(run.slots) < LONGEST

    def extend(self, run: Run, slots: array[int]) -> None:
        """Add slots at its end."""
        run.slots.extend(slots)
        self._name(slots, run)

    def hang(self, run: Run, parent: Run) -> None:
        """This run continues that one, if its own parent has gone: the block before it came back in another slot."""
        if run.parent is not parent and (run.parent is None or not len(run.parent.slots)) and run is not parent:
            run.parent = parent
            parent.n_children, parent.ticket = parent.n_children + 1, 0

    def shorten(self, run: Run, n: int) -> list[int]:
        """Take `n` slots, or all, from the end of a run; the last first."""
        slots, of = run.slots, self._of
        gone = slots[: -n - 1 : -1].tolist()
        del slots[-n:]
        for slot in gone:
            of[slot] = None
        return gone

    def split(self, run: Run, at: int) -> Run:
        """Cut it before its block `at`; the new run is the front, the old one with its children the rest."""
        front = Run(run.slots[:at], run.parent, run.depth)
        front.uses, front.used_at, front.group, front.is_leased = run.uses, run.used_at, run.group, run.is_leased
        front.n_children = 1
        self._name(front.slots, front)
        del run.slots[:at]
        run.parent, run.depth = front, run.depth + at
        return front

    def _cut(self, run: Run, begin: int, end: int) -> Run:
        """Blocks [begin, end) of a run as one of their own."""
        if end < len(run.slots):
            run = self.split(run, end)
        if begin:
            self.split(run, begin)
        return run

    def _name(self, slots: Iterable[int], run: Run) -> None:
        of = self._of
        for slot in slots:
            of[slot] = run
