"""Who is not heard: told once, and forgotten after a while."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tenuto.advisor.core import Place, WorkerName

logger = logging.getLogger(__name__)

_TOLD_AFTER_S = 30.0
_FORGOTTEN_AFTER_S = 300.0


class Silence:
    """Keeps when each engine was heard last. Times are in seconds by one clock."""

    def __init__(self, url: str, now_s: float) -> None:
        self._url = url
        self._began_s = now_s
        self._heard_s: dict[Place, float] = {}
        self._driven_s: dict[WorkerName, float] = {}
        self._told: set[WorkerName] = set()
        self._is_told = False

    def heard(self, place: Place, now_s: float) -> None:
        """An engine has told something."""
        self._heard_s[place] = now_s

    def look(self, driven: Iterable[WorkerName], now_s: float) -> None:
        """Tell, once, that nobody is heard, and which engines of those that are driven are not."""
        if not self._is_told and not self._heard_s and now_s - self._began_s >= _TOLD_AFTER_S:
            self._is_told = True
            logger.warning("tenuto: nobody is heard at %s; do engines publish there (events.url)?", self._url)
        names = {place[1:] for place in self._heard_s}
        for name in driven:
            since_s = self._driven_s.setdefault(name, now_s)
            if name not in names and name not in self._told and now_s - since_s >= _TOLD_AFTER_S:
                self._told.add(name)
                logger.warning(
                    "tenuto: worker %s, rank %d, is driven and not heard: nothing of it is moved; set its events.url",
                    *name,
                )

    def gone(self, agents: Iterable[WorkerName], now_s: float) -> list[Place]:
        """Engines that were silent for minutes and have no agent: they are forgotten here, too."""
        names = set(agents)
        found = [
            place
            for place, heard_s in self._heard_s.items()
            if now_s - heard_s > _FORGOTTEN_AFTER_S and place[1:] not in names
        ]
        for place in found:
            del self._heard_s[place]
        self._driven_s = {name: since_s for name, since_s in self._driven_s.items() if name in names}
        self._told &= names
        return found
