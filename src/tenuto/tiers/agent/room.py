"""The volumes of an agent, which of their places are used, and where there is room. Under the agent's lock."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from tenuto.errors import ConfigError, InvariantError, StoreError
from tenuto.tiers.agent.bindings import At
from tenuto.tiers.agent.messages import HOME
from tenuto.tiers.agent.places import Places
from tenuto.tiers.agent.volume import Volume
from tenuto.tiers.store import Capacity

logger = logging.getLogger(__name__)

_SPARE_SHARE = 50
"""With several volumes, one place in so many of each is left to moves."""
_MOST_SPARE = 64
_REST_S = 30.0
"""How long a volume that failed gets no new blocks, where there are others."""


class Room:
    """`volumes` by name, home first; `places` of each. Not thread-safe."""

    def __init__(self, volumes: dict[str, Volume]) -> None:
        self.volumes = volumes
        self.places = {name: Places(place for place, _ in volume.recovered) for name, volume in volumes.items()}
        self.draining: set[str] = set()
        """Volumes that take nothing more."""
        self.limits: dict[str, int] = {}
        """Volumes of which only so many places can be used now, whatever they say."""
        self._rests_until: dict[str, float] = {}  # of those whose last write failed

    def add(self, name: str, volume: Volume) -> None:
        """One more volume, which is empty."""
        self.volumes[name] = volume
        self.places[name] = Places()

    def remove(self, name: str) -> Volume:
        """One less; nothing is in it any more."""
        if not self.places[name].is_idle:
            raise InvariantError(f"volume {name} is in use: {self.places[name]}")
        self.draining.discard(name)
        self._rests_until.pop(name, None)
        del self.places[name]
        return self.volumes.pop(name)

    def need(self, name: str) -> Volume:
        """The volume of that name. Raises `ConfigError`."""
        if name not in self.volumes:
            known = ", ".join(sorted(other for other in self.volumes if other != HOME)) or "none"
            raise ConfigError(f"there is no volume {name!r} that can be given up or moved to; there is: {known}")
        return self.volumes[name]

    def n_places(self, name: str) -> int:
        """Places that can be used now."""
        return self._now(name).n_slots

    def holds(self, at: At) -> bool:
        """Whether something is there."""
        return self.places[at.volume].is_held(at.place)

    def pin(self, ats: Iterable[At | None]) -> None:
        """These places are read or written: they are not used for anything else before `unpin`."""
        for at in ats:
            if at is not None and at.volume in self.places:
                self.places[at.volume].pin(at.place)

    def unpin(self, ats: Iterable[At | None]) -> None:
        """They are no more."""
        for at in ats:
            if at is not None and at.volume in self.places:
                self.places[at.volume].unpin(at.place)

    def unlist(self, gone: Mapping[str, Sequence[int]]) -> StoreError | None:
        """Forget places by volume; what went wrong. One that can't be forgotten now is nobody's at the next start."""
        last: StoreError | None = None
        for name, places in gone.items():
            try:
                self.volumes[name].forget(places)
            except StoreError as error:
                logger.debug("volume %r does not forget now: %s", name, error)
                last = error
        return last

    def tell(self, name: str, failure: str) -> None:
        """How writing to a volume went: what failed, or nothing. One that fails gets no new blocks for a while."""
        if failure and len(self.volumes) > 1:
            if name not in self._rests_until:
                logger.warning("tenuto: volume %r gets no new blocks for now: %s", name, failure)
            self._rests_until[name] = time.monotonic() + _REST_S
        elif not failure and self._rests_until.pop(name, None) is not None:
            logger.warning("tenuto: volume %r is written again", name)

    def choose(self, was: At | None, *, keeps: bool) -> At | None:
        """A place to write to, which is used from now on: home if there is room, by the slot's number at best.

        `was`: where the slot is, or would be by its number; `keeps`: whether it uses that place.
        """
        now, home = self._now(HOME), self.places[HOME]
        if was is not None and was.volume == HOME and was.place < now.n_slots and not self._rests(HOME):
            if keeps:
                return was
            if home.is_used(was.place) or now.n_slots - home.n_used > self._n_kept(now):
                home.take(was.place)
                return was
        for name in self.volumes:  # home first
            if name in self.draining or self._rests(name):
                continue
            if name != HOME and keeps and was is not None and not self._rests(was.volume):
                break
            now, places = self._now(name), self.places[name]
            if now.n_slots - places.n_used > self._n_kept(now):
                place = places.take_lowest(now.n_slots)
                if place is not None:
                    return At(name, place)
        return was if keeps else None

    def n_blocks(self) -> tuple[int, bool]:
        """Blocks that there is room for, and whether there will be more; as long as home grows, at home alone."""
        now = {name: self._now(name) for name in self.volumes if name not in self.draining}
        is_growing = any(one.is_growing for one in now.values())
        n_blocks = 0
        for name, one in now.items():
            is_shut = self._rests(name) or (now[HOME].is_growing and name != HOME)
            n_blocks += max(self.places[name].n_used, 0 if is_shut else one.n_slots - self._n_kept(one))
        return n_blocks, is_growing

    def _now(self, name: str) -> Capacity:
        now, limit = self.volumes[name].capacity(), self.limits.get(name)
        return now if limit is None else Capacity(min(limit, now.n_slots), now.is_growing)

    def _rests(self, name: str) -> bool:
        until = self._rests_until.get(name)
        return until is not None and time.monotonic() < until

    def _n_kept(self, now: Capacity) -> int:
        """Places of a volume that are left to moves: where there are several, and it does not grow any more."""
        if len(self.volumes) == 1 or now.is_growing:
            return 0
        return min(_MOST_SPARE, max(1, now.n_slots // _SPARE_SHARE))
