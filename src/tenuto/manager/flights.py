"""Transfers on their way, and the leases they live on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tenuto.errors import InvariantError
from tenuto.memory.pages import PageRun
from tenuto.pools import Lease, WritableLease
from tenuto.tokens import BlockHash, BlockKey, TokenBlock
from tenuto.transfers.plan import Route, Transfer

_INTO_HOST = (Route.DEVICE_TO_HOST, Route.DISK_TO_HOST)


@dataclass(slots=True)
class Flight:
    """`reads` hold the sources, `fills` the targets; `follower` reads what this one brings."""

    transfer: Transfer
    generation: int
    reads: list[Lease] = field(default_factory=list[Lease])
    fills: WritableLease | None = None
    follower: Flight | None = None
    has_landed: bool = False
    spoilt: WritableLease | None = None
    """Slots that the flight before failed to fill on some rank: on another, this one reads them until it lands."""
    blocks: tuple[TokenBlock, ...] = ()
    """What is known of the tokens of the blocks that it moves, and perhaps of others."""

    def blocks_of(self, keys: Sequence[BlockKey]) -> tuple[TokenBlock, ...]:
        """These blocks with their tokens, in order; nothing where those of some are not known."""
        if len(keys) == len(self.blocks):  # all of them, since those that arrive are some of them
            return self.blocks
        known = {block.key.hash: block for block in self.blocks}
        found = tuple(known[key.hash] for key in keys if key.hash in known)
        return found if len(found) == len(keys) else ()


class Flights:
    """Numbers transfers and keeps them until their result is in."""

    def __init__(self) -> None:
        self.arriving: dict[BlockHash, int] = {}
        """Blocks on their way into host memory, by transfer; each at most once."""
        self.overdue: set[BlockHash] = set()
        """Those of them that nobody should wait for any more: whoever did was answered TIMEOUT."""
        self.generation = 0
        """Advanced by a reset: what was launched before is dropped when it arrives."""
        self.in_flight = dict.fromkeys(Route, 0)
        """Transfers on their way, by route; its keys never change, so that any thread may read it."""
        self.tells_tokens = False
        self.tells_uses = False
        """Whether there are facts of what is loaded: nobody hears them where nothing is published."""
        """Whether facts of blocks that were brought from disk have their tokens too, which takes a microsecond each."""
        self._ids = itertools.count(1)
        self._flights: dict[int, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def launch(
        self,
        route: Route,
        keys: tuple[BlockKey, ...],
        *,
        sources: tuple[int, ...] = (),
        targets: tuple[int, ...] = (),
        pages: tuple[PageRun, ...] = (),
        volume: str = "",
        after: Flight | None = None,
        blocks: tuple[TokenBlock, ...] = (),
        known: Callable[[], tuple[TokenBlock, ...]] | None = None,
        reads: Iterable[Lease | None] = (),
        fills: WritableLease | None = None,
    ) -> Flight:
        """Make a transfer; it follows `after`, whose targets are its sources.

        `known` gives blocks with their tokens to whoever publishes them, while `blocks` go to the workers too.
        """
        waits = () if after is None else (after.transfer.id,)
        transfer = Transfer(next(self._ids), route, keys, sources, targets, pages, volume, waits, blocks)
        held = [lease for lease in reads if lease is not None]
        flight = Flight(transfer, self.generation, held, fills)
        if known is not None and self.tells_tokens:
            flight.blocks = known()
        else:
            flight.blocks = blocks if after is None or blocks else after.blocks
        if after is not None:
            after.follower = flight
        self._flights[transfer.id] = flight
        self.in_flight[route] += 1
        if route in _INTO_HOST:
            self.arriving.update((key.hash, transfer.id) for key in keys)
        return flight

    def land(self, transfer_id: int) -> Flight:
        """The transfer has ended on all ranks."""
        flight = self._flights.pop(transfer_id)
        flight.has_landed = True
        self.in_flight[flight.transfer.route] -= 1
        if flight.transfer.route in _INTO_HOST:
            for key in flight.transfer.keys:
                del self.arriving[key.hash]
                self.overdue.discard(key.hash)
        return flight

    def is_bringing(self, block: BlockHash) -> bool:
        """Whether a transfer brings a block into host memory that is worth waiting for."""
        return block in self.arriving and block not in self.overdue

    def give_up_on(self, keys: Iterable[BlockKey]) -> None:
        """A load of these was answered before what brings them has ended."""
        self.overdue.update(key.hash for key in keys if key.hash in self.arriving)

    def check(self) -> None:
        """Raise `InvariantError` unless `arriving` is what the transfers bring."""
        arriving = {
            key.hash: flight.transfer.id
            for flight in self._flights.values()
            if flight.transfer.route in _INTO_HOST
            for key in flight.transfer.keys
        }
        if arriving != self.arriving:
            raise InvariantError("blocks arriving in host memory do not match the transfers")
