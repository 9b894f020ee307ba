"""An agent's books: where each slot is, and what is being written or moved. Under the agent's lock."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from tenuto.errors import InvariantError, StoreError
from tenuto.tiers.agent.bindings import At, Bindings
from tenuto.tiers.agent.mapfile import MapFile
from tenuto.tiers.agent.messages import HOME
from tenuto.tiers.agent.room import Room
from tenuto.tiers.agent.volume import Volume
from tenuto.tiers.store import Capacity
from tenuto.tokens import BlockHash, BlockKey

logger = logging.getLogger(__name__)


class Books:
    """Not thread-safe; what it writes into `file` and unlists in volumes is done before it returns."""

    def __init__(self, volumes: dict[str, Volume], file: MapFile) -> None:
        self.room = Room(volumes)
        self.moving: set[int] = set()
        """Slots whose block is being moved; one that is taken out meanwhile is not to be moved any more."""
        self._file = file
        self._owed: set[int] = set()  # slots whose row in the file is wrong, since it could not be written
        self._bindings = Bindings()
        self._writing: set[int] = set()
        self._late: set[int] = set()  # those that were being written at a reset
        self.recovered = self._recover(file.slots())
        """(slot, key) of all blocks, oldest first as far as that is known."""
        self._n_slots = max((slot + 1 for slot, _ in self.recovered), default=0)

    # -- slots --------------------------------------------------------------------------------------

    def where(self, slots: Iterable[int]) -> list[At | None]:
        """Where slots are."""
        return list(map(self._bindings.place_of, slots))

    def writing_at(self, slots: Iterable[int]) -> list[At | None]:
        """Where slots are that are being written; None for the others."""
        return [self._bindings.place_of(slot) if slot in self._writing else None for slot in slots]

    def place(self, slots: Sequence[int]) -> list[At | None]:
        """Where to write slots, whose former blocks are forgotten; None for want of room. Ends moves of them.

        Each place is one that `written` is told of.
        """
        changed: list[int] = []
        left: dict[str, list[int]] = {}
        places: list[At | None] = []
        for slot in slots:
            self.moving.discard(slot)
            self._late.discard(slot)
            was = self._bindings.place_of(slot)
            is_its = was is not None and self.slot_at(was) == slot
            at = self.room.choose(was, keeps=is_its and was is not None and was.volume not in self.room.draining)
            if at != was:
                if was is not None and is_its:
                    left.setdefault(was.volume, []).append(was.place)
                    self.room.places[was.volume].free(was.place)
                before = self._bindings.bound(slot)
                self._bindings.unbind(slot) if at is None else self._bindings.bind(slot, at)
                if before != self._bindings.bound(slot):
                    changed.append(slot)
            (self._writing.discard if at is None else self._writing.add)(slot)
            places.append(at)
        self.room.unlist(left)
        self._note(changed)
        return places

    def written(self, slots: Sequence[int], ats: Sequence[At | None], good: Sequence[bool]) -> list[bool]:
        """They are written, the `good` ones well: which blocks are there now.

        The places of the others, and of those that were given up meanwhile, are free.
        """
        holds: list[bool] = []
        gone: dict[str, list[int]] = {}
        changed: list[int] = []
        for slot, at, is_good in zip(slots, ats, good, strict=True):
            holds.append(at is not None and is_good and slot in self._writing and slot not in self._late)
            if at is None or holds[-1]:
                self._writing.discard(slot)
                continue
            if slot in self._writing:
                self._writing.discard(slot)
                self._late.discard(slot)
                self.room.places[at.volume].free(at.place)
                if self._bindings.bound(slot) is not None:
                    self._bindings.unbind(slot)
                    changed.append(slot)
            if not self.room.holds(at):
                gone.setdefault(at.volume, []).append(at.place)
        self.room.unlist(gone)
        self._note(changed)
        return holds

    def forget(self, slots: Iterable[int]) -> None:
        """Nothing is in these slots any more. Raises `StoreError`."""
        gone: dict[str, list[int]] = {}
        changed: list[int] = []
        for slot in slots:
            self.moving.discard(slot)
            self._writing.discard(slot)
            at = self._bindings.place_of(slot)
            if at is None or self.slot_at(at) != slot:
                continue
            gone.setdefault(at.volume, []).append(at.place)
            self.room.places[at.volume].free(at.place)
            if self._bindings.bound(slot) is not None:
                self._bindings.unbind(slot)
                changed.append(slot)
        error = self.room.unlist(gone)
        self._note(changed)
        if error is not None:
            raise error

    def reset(self, namespace: bytes, epoch: int) -> None:
        """Forget all but what is being written, which comes too late."""
        for volume in self.room.volumes.values():
            volume.reset(namespace, epoch)
        self.moving.clear()
        self._late = set(self._writing)
        late = set(self.writing_at(self._writing))
        self._bindings.keep_only(self._writing)
        for name, places in self.room.places.items():
            for place in places.held():
                at = At(name, place)
                if at not in late and not self._bindings.is_reserved(at):
                    places.free(place)
        try:
            self._file.keep_only(self._bindings.rows())
            self._owed.clear()
        except StoreError as error:  # the rows are of blocks that are gone: they mean nothing
            logger.debug("the slots of before can't be forgotten: %s", error)

    # -- moves --------------------------------------------------------------------------------------

    def slot_at(self, at: At) -> int | None:
        """The slot whose block is there, if there is one."""
        return self._bindings.slot_at(at) if self.room.holds(at) else None

    def movable(self, was: At) -> int | None:
        """The slot of the block that is there; None when it is gone, or can't be moved now."""
        slot = self.slot_at(was)
        return None if slot in self._writing or slot in self.moving else slot

    def begin_move(self, slot: int, was: At, target: str, below: int | None = None) -> int | None:
        """A place in `target` for a slot that is movable from `was`; None when there is no room.

        `below`: only a place below that. The source is pinned until `end_move`.
        """
        n_places = self.room.n_places(target) if below is None else min(below, self.room.n_places(target))
        to = self.room.places[target].take_lowest(n_places)
        if to is None:
            return None
        self.moving.add(slot)
        self.room.pin([was])
        self._bindings.reserve(At(target, to))
        return to

    def end_move(self, moves: Sequence[tuple[int, At, At, bool]]) -> list[bool]:
        """(slot, from, to, whether it was copied): which moves hold; those that don't are undone."""
        gone: dict[str, list[int]] = {}
        hold: list[bool] = []
        for slot, was, to, is_copied in moves:
            holds = is_copied and slot in self.moving
            hold.append(holds)
            self.moving.discard(slot)
            self._bindings.give_up(to)
            left = was if holds else to
            gone.setdefault(left.volume, []).append(left.place)
            if holds:
                self._bindings.bind(slot, to)
            self.room.places[left.volume].free(left.place)
            self.room.unpin([was])
        self._note([slot for (slot, *_), holds in zip(moves, hold, strict=True) if holds])
        self.room.unlist(gone)  # after that: who is killed between has the block twice, and forgets one
        return hold

    # -- all of them --------------------------------------------------------------------------------

    def bound_to(self, name: str) -> list[int]:
        """Slots that are bound to places of a volume other than home."""
        return [slot for slot, at in self._bindings.rows().items() if at.volume == name]

    def capacity(self) -> Capacity:
        """Slots of all volumes; as long as home grows, there is room there alone."""
        n_blocks, is_growing = self.room.n_blocks()
        self._n_slots = max(self._n_slots, n_blocks)
        return Capacity(self._n_slots, is_growing, None if n_blocks == self._n_slots else n_blocks)

    def check(self) -> None:
        """Raise `InvariantError` unless every place that holds something is one slot's, and every binding means one."""
        for slot, at in self._bindings.rows().items():
            if not self.room.holds(at):
                raise InvariantError(f"slot {slot} is bound to {at}, which is free")
        for name, places in self.room.places.items():
            for place in places.held():
                at = At(name, place)
                slot = self._bindings.slot_at(at)
                if not self._bindings.is_reserved(at) and (slot is None or self._bindings.place_of(slot) != at):
                    raise InvariantError(f"{at} is used, but no slot is there")

    def _note(self, changed: Iterable[int]) -> None:
        """Write where slots are bound, or what was not written before; what can't be now, is later."""
        self._owed.update(changed)
        if not self._owed:
            return
        rows = {slot: at for slot in self._owed if (at := self._bindings.bound(slot)) is not None}
        try:
            self._file.change(rows, [slot for slot in self._owed if slot not in rows])
            self._owed.clear()
        except StoreError as error:
            logger.debug("where %d slots are can't be noted now: %s", len(self._owed), error)

    def _recover(self, rows: dict[int, At]) -> list[tuple[int, BlockKey]]:
        """The slots of what the volumes hold; what is listed twice, or is nobody's, is forgotten."""
        room = self.room
        self._bindings = Bindings(
            (slot, at) for slot, at in rows.items() if at.volume in room.places and room.holds(at)
        )
        found: dict[BlockHash, tuple[int, int, BlockKey]] = {}
        for name, volume in room.volumes.items():
            orphans: list[int] = []
            stamps = volume.stamps() if len(room.volumes) > 1 else {}  # else they are in order
            for place, key in volume.recovered:
                slot = self._bindings.slot_at(At(name, place))
                if slot is None or key.hash in found:
                    orphans.append(place)
                    room.places[name].free(place)
                    if slot is not None:
                        self._bindings.unbind(slot)
                else:
                    found[key.hash] = stamps.get(place, 0), slot, key
            room.unlist({name: orphans} if orphans else {})
        self._note([slot for slot, at in rows.items() if self._bindings.bound(slot) != at])
        return [(slot, key) for _, slot, key in sorted(found.values(), key=lambda entry: entry[0])]


def elsewhere(books: Books) -> list[tuple[BlockKey, str]]:
    """(block, volume) of the recovered blocks that are not at home."""
    ats = zip(books.recovered, books.where(slot for slot, _ in books.recovered), strict=True)
    return [(key, at.volume) for (_, key), at in ats if at is not None and at.volume != HOME]
