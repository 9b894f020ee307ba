"""Hot blocks to fast volumes, cold ones out of them."""

from __future__ import annotations

from collections.abc import Iterable

from tenuto.advisor.orders import Move, Order
from tenuto.advisor.placement import View


class Promote:
    """What was read or stored goes to the fastest volume that has nothing better to hold."""

    def plan(self, view: View) -> Iterable[Order]:
        """See `Rule`."""
        for at, volume in enumerate(view.volumes[:-1]):
            rows = view.changes(at).arriving
            if len(rows):
                yield Move(volume.name, rows)


class Demote:
    """A full volume's coldest blocks go to the next slower one with room, as many as better ones wait."""

    def plan(self, view: View) -> Iterable[Order]:
        """See `Rule`."""
        for at in range(len(view.volumes) - 1):
            rows = view.changes(at).leaving
            slower = [volume for volume in view.volumes[at + 1 :] if volume.room > 0 and not volume.is_draining]
            if len(rows) and slower:
                yield Move(slower[0].name, rows)
