"""An agent's books: volumes, which of their places are used, and where each slot is. Under the agent's lock."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from tenuto.errors import ConfigError, InvariantError, StoreError
from tenuto.tiers.agent.bindings import At, Bindings
from tenuto.tiers.agent.mapfile import MapFile
from tenuto.tiers.agent.messages import HOME
from tenuto.tiers.agent.places import Places
from tenuto.tiers.agent.volume import Volume
from tenuto.tiers.store import Capacity
from tenuto.tokens import BlockHash, BlockKey

logger = logging.getLogger(__name__)

_SPARE_SHARE = 50
"""With several volumes, one place in so many of each is left to moves."""
_MOST_SPARE = 64


class Books:
    """Not thread-safe; what it writes into `file` and unlists in volumes is done before it returns."""

    def __init__(self, volumes: dict[str, Volume], file: MapFile) -> None:
        self.volumes = volumes
        self.draining: set[str] = set()
        """Volumes that take nothing more."""
        self.moving: set[int] = set()
        """Slots whose block is being moved; one that is taken out meanwhile is not to be moved any more."""
        self._file = file
        self._places = {name: Places(place for place, _ in volume.recovered) for name, volume in volumes.items()}
        self._bindings = Bindings()
        self._writing: set[int] = set()
        self.recovered = self._recover(file.slots())
        """(slot, key) of all blocks, oldest first as far as that is known."""
        self._n_slots = max((slot + 1 for slot, _ in self.recovered), default=0)

    # -- slots --------------------------------------------------------------------------------------

    def where(self, slots: Iterable[int]) -> list[At | None]:
        """Where slots are."""
        return list(map(self._bindings.place_of, slots))

    def place(self, slots: Sequence[int]) -> list[At | None]:
        """Where to write slots, whose former blocks are forgotten; None for want of room. Ends moves of them."""
        bound: dict[int, At] = {}
        left: dict[str, list[int]] = {}
        unbound: list[int] = []
        places: list[At | None] = []
        for slot in slots:
            self.moving.discard(slot)
            was = self._bindings.place_of(slot)
            at = self._choose(slot, was)
            if at != was:
                if was is not None and self._is_its(slot, was):
                    left.setdefault(was.volume, []).append(was.place)
                    self._places[was.volume].free(was.place)
                if at is None:
                    self._bindings.unbind(slot)
                    unbound.append(slot)
                else:
                    self._bindings.bind(slot, at)
                    (unbound.append(slot) if at == (HOME, slot) else bound.update({slot: at}))
            if at is not None:
                self._writing.add(slot)
            places.append(at)
        self._forget_quietly(left)
        self._file.change(bound, unbound)
        return places

    def written(self, slots: Iterable[int]) -> None:
        """They are written."""
        self._writing.difference_update(slots)

    def forget(self, slots: Iterable[int]) -> None:
        """Nothing is in these slots any more. Raises `StoreError`."""
        gone: dict[str, list[int]] = {}
        unbound: list[int] = []
        for slot in slots:
            self.moving.discard(slot)
            self._writing.discard(slot)
            at = self._bindings.place_of(slot)
            if at is None or not self._is_its(slot, at):
                continue
            gone.setdefault(at.volume, []).append(at.place)
            self._places[at.volume].free(at.place)
            self._bindings.unbind(slot)
            if at != (HOME, slot):
                unbound.append(slot)
        for name, places in gone.items():
            self.volumes[name].forget(places)
        self._file.change({}, unbound)

    def reset(self, namespace: bytes, epoch: int) -> None:
        """Forget all but what is being written, which comes too late."""
        for volume in self.volumes.values():
            volume.reset(namespace, epoch)
        self.moving.clear()
        before = self._bindings.rows()
        late = {at for slot in self._writing if (at := self._bindings.place_of(slot)) is not None}
        self._bindings.keep_only(self._writing)
        for name, places in self._places.items():
            for place in places.used():
                at = At(name, place)
                if at not in late and not self._bindings.is_reserved(at):
                    places.free(place)
        after = self._bindings.rows()
        self._file.change({}, [slot for slot in before if slot not in after])

    # -- moves --------------------------------------------------------------------------------------

    def movable(self, was: At) -> int | None:
        """The slot of the block that is there; None when it is gone, or can't be moved now."""
        slot = self.slot_at(was)
        return None if slot in self._writing or slot in self.moving else slot

    def begin_move(self, slot: int, was: At, target: str, below: int | None = None) -> int | None:
        """A place in `target` for a slot that is movable from `was`; None when there is no room.

        `below`: only a place below that. The source is pinned until `end_move`.
        """
        n_places = self.n_places(target) if below is None else min(below, self.n_places(target))
        to = self._places[target].take_lowest(n_places)
        if to is None:
            return None
        self.moving.add(slot)
        self._places[was.volume].pin(was.place)
        self._bindings.reserve(At(target, to))
        return to

    def end_move(self, moves: Sequence[tuple[int, At, At, bool]]) -> list[bool]:
        """(slot, from, to, whether it was copied): which moves hold; those that don't are undone.

        Raises `StoreError` where the new places can't be noted: they hold until the next start all the same.
        """
        bound: dict[int, At] = {}
        unbound: list[int] = []
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
                (unbound.append(slot) if to == (HOME, slot) else bound.update({slot: to}))
            self._places[left.volume].free(left.place)
            self._places[was.volume].unpin(was.place)
        self._forget_quietly(gone)
        self._file.change(bound, unbound)
        return hold

    def slot_at(self, at: At) -> int | None:
        """The slot whose block is there, if there is one."""
        return self._bindings.slot_at(at) if self._is_used(at) else None

    # -- readers ------------------------------------------------------------------------------------

    def pin(self, ats: Iterable[At | None]) -> None:
        """These places are read: they are not used for anything else before `unpin`."""
        for at in ats:
            if at is not None and at.volume in self._places:
                self._places[at.volume].pin(at.place)

    def unpin(self, ats: Iterable[At | None]) -> None:
        """They are read no more."""
        for at in ats:
            if at is not None and at.volume in self._places:
                self._places[at.volume].unpin(at.place)

    # -- volumes ------------------------------------------------------------------------------------

    def add(self, name: str, volume: Volume) -> None:
        """One more volume, which is empty."""
        self.volumes[name] = volume
        self._places[name] = Places()

    def remove(self, name: str) -> Volume:
        """One less; nothing is in it any more. Raises `StoreError`."""
        if self._places[name].n_used:
            raise InvariantError(f"volume {name} still holds {self._places[name].n_used} blocks")
        self._file.remove(name)
        self.draining.discard(name)
        del self._places[name]
        return self.volumes.pop(name)

    def need(self, name: str, *, may_be_home: bool = True) -> Volume:
        """The volume of that name. Raises `ConfigError`."""
        if name not in self.volumes or (name == HOME and not may_be_home):
            known = ", ".join(sorted(other for other in self.volumes if other != HOME)) or "none"
            raise ConfigError(f"there is no volume {name!r} that can be given up or moved to; there is: {known}")
        return self.volumes[name]

    def n_places(self, name: str) -> int:
        """Places that can be used now."""
        return self.volumes[name].capacity().n_slots

    def n_used(self, name: str) -> int:
        """Places that something is in."""
        return self._places[name].n_used

    def bound_to(self, name: str) -> list[int]:
        """Slots that are bound to places of a volume other than home."""
        return [slot for slot, at in self._bindings.rows().items() if at.volume == name]

    def is_writing(self, slot: int) -> bool:
        """Whether the slot is being written."""
        return slot in self._writing

    def end(self, name: str) -> int:
        """Behind the last place that is used."""
        return self._places[name].end()

    def capacity(self) -> Capacity:
        """Slots of all volumes; as long as home grows, there is room there alone."""
        now = {name: volume.capacity() for name, volume in self.volumes.items() if name not in self.draining}
        if now[HOME].is_growing:
            n_blocks = now[HOME].n_slots + sum(self._places[name].n_used for name in now if name != HOME)
        else:
            n_blocks = sum(max(self._places[name].n_used, one.n_slots - self.n_kept(one)) for name, one in now.items())
        self._n_slots = max(self._n_slots, n_blocks)
        is_growing = any(one.is_growing for one in now.values())
        return Capacity(self._n_slots, is_growing, None if n_blocks == self._n_slots else n_blocks)

    def elsewhere(self) -> list[tuple[BlockKey, str]]:
        """(block, volume) of the recovered blocks that are not at home."""
        ats = ((key, self._bindings.place_of(slot)) for slot, key in self.recovered)
        return [(key, at.volume) for key, at in ats if at is not None and at.volume != HOME]

    def check(self) -> None:
        """Raise `InvariantError` unless every bound place is used."""
        for slot, at in self._bindings.rows().items():
            if not self._places[at.volume].is_used(at.place):
                raise InvariantError(f"slot {slot} is bound to {at}, which is free")

    # -- inside -------------------------------------------------------------------------------------

    def _is_its(self, slot: int, at: At) -> bool:
        """Whether the slot uses that place."""
        return self.slot_at(at) == slot

    def _choose(self, slot: int, was: At | None) -> At | None:
        """Home, where the slot is or by its number, else wherever there is room."""
        home, now = self._places[HOME], self.volumes[HOME].capacity()
        if was is not None and was.volume == HOME and was.place < now.n_slots:
            if home.is_used(was.place):
                return was
            if now.n_slots - home.n_used > self.n_kept(now):
                home.take(was.place)
                return was
        keeps = was is not None and was.volume not in self.draining and self._is_its(slot, was)
        for name, volume in self.volumes.items():  # home first
            if name in self.draining:
                continue
            if name != HOME and keeps:
                break
            now, places = volume.capacity(), self._places[name]
            if now.n_slots - places.n_used > self.n_kept(now):
                place = places.take_lowest(now.n_slots)
                if place is not None:
                    return At(name, place)
        return was if keeps else None

    def n_kept(self, now: Capacity) -> int:
        """Places of a volume that are left to moves: where there are several, and it does not grow any more."""
        if len(self.volumes) == 1 or now.is_growing:
            return 0
        return min(_MOST_SPARE, max(1, now.n_slots // _SPARE_SHARE))

    def _recover(self, rows: dict[int, At]) -> list[tuple[int, BlockKey]]:
        """The slots of what the volumes hold; what is listed twice, or is nobody's, is forgotten."""
        good = {slot: at for slot, at in rows.items() if at.volume in self._places and self._is_used(at)}
        self._bindings = Bindings(good.items())
        self._file.change({}, [slot for slot in rows if slot not in good])
        found: dict[BlockHash, tuple[int, int, BlockKey]] = {}
        for name, volume in self.volumes.items():
            orphans: list[int] = []
            stamps = volume.stamps() if len(self.volumes) > 1 else {}  # else they are in order
            for place, key in volume.recovered:
                slot = self._bindings.slot_at(At(name, place))
                if slot is None or key.hash in found:
                    orphans.append(place)
                    self._places[name].free(place)
                    if slot is not None:
                        self._bindings.unbind(slot)
                else:
                    found[key.hash] = stamps.get(place, 0), slot, key
            self._forget_quietly({name: orphans} if orphans else {})
        return [(slot, key) for _, slot, key in sorted(found.values(), key=lambda entry: entry[0])]

    def _is_used(self, at: At) -> bool:
        return self._places[at.volume].is_used(at.place)

    def _forget_quietly(self, gone: dict[str, list[int]]) -> None:
        """Unlist places by volume. One that can't be unlisted now is nobody's at the next start."""
        for name, places in gone.items():
            try:
                self.volumes[name].forget(places)
            except StoreError as error:
                logger.debug("volume %r does not forget now: %s", name, error)
