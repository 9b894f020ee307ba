"""Movers that move nothing, and stop where they are told to."""

import threading
from dataclasses import dataclass

from tenuto.testing.blocks import make_keys
from tenuto.transfers.lanes import LANDED, Landing
from tenuto.transfers.plan import BlockFailure, PageRun, Route, Transfer

KEYS = make_keys(8)
TO_DEVICE = (Route.HOST_TO_DEVICE, Route.DISK_TO_DEVICE)


@dataclass
class Moved:
    """One call of `move`."""

    transfer_id: int
    indices: list[int]
    thread: threading.Thread


class Air:
    """A landing that has not ended."""

    has_ended = False


class FakeMovers:
    """A load to the device first moves ("move"), then touches the device ("touch"); the others only move."""

    extent_bytes = 100

    def __init__(self):
        self.moved: list[Moved] = []
        self.gathered: list[int] = []
        self.settled: list[int] = []
        self.marks: dict[int, int] = {}
        self.touched: list[int] = []
        self.refused: list[int] = []
        self.left: set[int] = set()
        self.failures: dict[int, list[BlockFailure]] = {}
        self.errors: dict[tuple[int, str], Exception] = {}
        self.on_move = lambda: None
        self._changed = threading.Condition()
        self._held: set[tuple[int, str]] = set()
        self._at: set[tuple[int, str]] = set()

    def hold(self, transfer_id: int, where: str = "move") -> None:
        """The transfer stops there until `let_go`."""
        self._held.add((transfer_id, where))

    def let_go(self, transfer_id: int, where: str = "move") -> None:
        with self._changed:
            self._held.discard((transfer_id, where))
            self._changed.notify_all()

    def wait_at(self, transfer_id: int, where: str = "move") -> None:
        """Wait until the transfer has come there."""
        with self._changed:
            assert self._changed.wait_for(lambda: (transfer_id, where) in self._at, 30)

    def wait_left(self, transfer_id: int) -> None:
        """Wait until `move` has returned."""
        with self._changed:
            assert self._changed.wait_for(lambda: transfer_id in self.left, 30)

    def mark(self) -> int:
        """The number of gathers so far."""
        return len(self.gathered)

    def settle(self) -> None:
        self.settled.append(len(self.gathered))

    def gather(self, transfer, indices) -> Landing:
        """Lands at once, or when `land` is let go."""
        self.gathered.append(transfer.id)
        self._pass(transfer.id, "gather")
        return Air() if (transfer.id, "land") in self._held else LANDED

    def land(self, transfer, indices, landing) -> None:
        self._note(transfer, indices)
        self._pass(transfer.id, "land")
        self._leave(transfer.id)

    def move(self, transfer, indices, touching, after) -> list[BlockFailure]:
        self.marks[transfer.id] = after
        try:
            self._note(transfer, indices)
            self._pass(transfer.id, "move")
            if transfer.route in TO_DEVICE:
                with touching() as is_allowed:
                    (self.touched if is_allowed else self.refused).append(transfer.id)
                    self._pass(transfer.id, "touch")
            return self.failures.get(transfer.id, [])
        finally:
            self._leave(transfer.id)

    def _note(self, transfer, indices) -> None:
        self.moved.append(Moved(transfer.id, list(indices), threading.current_thread()))
        self.on_move()

    def _leave(self, transfer_id: int) -> None:
        with self._changed:
            self.left.add(transfer_id)
            self._changed.notify_all()

    def _pass(self, transfer_id: int, where: str) -> None:
        with self._changed:
            self._at.add((transfer_id, where))
            self._changed.notify_all()
            self._changed.wait_for(lambda: (transfer_id, where) not in self._held)
        if (transfer_id, where) in self.errors:
            raise self.errors[transfer_id, where]

    def indices(self) -> dict[int, list[int]]:
        """What was moved, by transfer."""
        return {moved.transfer_id: moved.indices for moved in self.moved}


def transfer(number: int, route: Route, keys=KEYS[:2], after: tuple[int, ...] = ()) -> Transfer:
    """Transfer `number`, with pages where its route has some."""
    pages = tuple(PageRun((i,)) for i in range(len(keys)))
    has_pages = route in (*TO_DEVICE, Route.DEVICE_TO_HOST)
    return Transfer(number, route, tuple(keys), pages=pages if has_pages else (), after=after)
