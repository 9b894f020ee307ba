"""Moving blocks between places: copied and verified first, then bound, while readers go on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tenuto.errors import Cause, StoreError
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.agent.bindings import At
from tenuto.tiers.agent.books import Books
from tenuto.tiers.agent.messages import Compacted, Moved
from tenuto.tiers.agent.room import Room
from tenuto.tiers.store import SlotIO
from tenuto.tokens import BlockHash, BlockKey

logger = logging.getLogger(__name__)

_BATCH_BYTES = 32 << 20
_MOST_BATCH = 64
_DRAIN_S = 30.0
"""How long a volume that is given up waits for what is being written to it."""
_GROW_S = 5.0
"""How long a move waits for a volume that grows, at most, before it leaves the rest."""
_READ_S = 5.0
"""How long a compaction waits for readers of the places that it has emptied."""
_TURN_S = 0.01
_SPARE_SHARE = 50
"""A volume that is compacted keeps room for one more block in so many, and for one at least."""

Tell = Callable[[Sequence[tuple[BlockKey, str]], Sequence[BlockHash]], None]
"""Takes blocks that were moved, with their volumes, and blocks that were lost; called with the lock."""


@dataclass(frozen=True, slots=True)
class _Copy:
    slot: int
    key: BlockKey
    was: At
    to: At
    buffer: memoryview


@dataclass(slots=True)
class _Outcome:
    moved: list[BlockHash] = field(default_factory=list[BlockHash])
    failed: list[BlockHash] = field(default_factory=list[BlockHash])
    no_room: list[BlockHash] = field(default_factory=list[BlockHash])


class Mover:
    """One thing at a time (`alone`); `lock` is the books', and is not held while bytes move."""

    def __init__(self, books: Books, lock: threading.Lock, extent_bytes: int, tell: Tell) -> None:
        self._books = books
        self._lock = lock
        self._tell = tell
        self._n_batch = max(1, min(_MOST_BATCH, _BATCH_BYTES // extent_bytes))
        self._extent_bytes = extent_bytes
        self._arena: HostArena | None = None
        self._turn = threading.Lock()
        self._is_over = False

    @contextmanager
    def alone(self) -> Generator[None]:
        """Wait for the turn. Raises `StoreError` when the agent is being closed."""
        with self._turn:
            self._go_on()
            yield

    def stop(self) -> None:
        """End what is under way, between two batches."""
        self._is_over = True
        with self._turn:
            if self._arena is not None:
                self._arena.close()
                self._arena = None

    def move(self, hashes: Sequence[BlockHash], target: str) -> Moved:
        """See `StorageAgent.move`."""
        if not self._books.room.need(target).is_there():
            raise StoreError(Cause.MISSING, f"volume {target!r}: its folder was removed; nothing is moved there")
        n_moved, absent, refused = 0, list[BlockHash](), list[BlockHash]()
        wanted = list(dict.fromkeys(hashes))
        for at in range(0, len(wanted), self._n_batch):
            batch = wanted[at : at + self._n_batch]
            found = self._find(batch, [target, *(name for name in self._books.room.volumes if name != target)])
            absent += [block for block in batch if block not in found]
            outcome = self._copy_all([entry for entry in found.values() if entry[0].volume != target], target)
            n_moved += len(outcome.moved)
            refused += outcome.failed + outcome.no_room
        return Moved(n_moved, tuple(absent), tuple(refused))

    def drop(self, hashes: Sequence[BlockHash]) -> int:
        """See `StorageAgent.drop`."""
        n = 0
        for at in range(0, len(hashes), self._n_batch):
            self._go_on()
            with self._lock:
                n += len(self._drop(self._find(hashes[at : at + self._n_batch])))
        return n

    def compact(self, name: str) -> Compacted:
        """See `StorageAgent.compact`."""
        room = self._books.room
        volume, places = room.need(name), room.places[name]
        n_moved, below = 0, None
        while places.n_used < room.n_places(name) and volume.file_bytes > places.n_used * self._extent_bytes:
            entries = volume.blocks_from(places.n_used, self._n_batch, below)
            if not entries:
                break
            below = entries[-1][0]
            n_moved += len(self._copy([(At(name, place), key) for place, key in entries], name, places.n_used).moved)
        deadline = time.monotonic() + _READ_S
        while places.end() > places.n_used and time.monotonic() < deadline:
            time.sleep(_TURN_S)  # who began to read where a block was; who comes now reads where it is
        with self._lock:
            keep = max(places.end(), places.n_used + max(1, places.n_used // _SPARE_SHARE))
            if keep >= room.n_places(name):
                return Compacted(n_moved, 0)
            room.limits[name] = keep  # nobody goes behind it while the files are cut off
        try:
            return Compacted(n_moved, volume.give_back(keep))
        finally:
            with self._lock:
                del room.limits[name]

    def drain(self, name: str) -> Moved:
        """Take everything out of a volume that is marked as draining. Raises `StoreError` (TIMEOUT)."""
        room = self._books.room
        volume, places = room.volumes[name], room.places[name]
        n_moved, lost = 0, list[BlockHash]()
        deadline: float | None = None
        while True:
            below = None
            while entries := volume.blocks_from(0, self._n_batch, below):
                below = entries[-1][0]
                left = [(At(name, place), key) for place, key in entries]
                for target in [other for other in room.volumes if other != name]:
                    moved = set(self._copy_all(left, target).moved)
                    n_moved += len(moved)
                    left = [(at, key) for at, key in left if key.hash not in moved]
                with self._lock:
                    lost += self._drop(self._find([key.hash for _, key in left], [name]))
            self._go_on()
            deadline = deadline or time.monotonic() + _DRAIN_S
            is_late = time.monotonic() > deadline
            with self._lock:
                if is_late:
                    self._books.forget(self._books.bound_to(name))  # layers of what was given up half written
                if places.is_idle:
                    return Moved(n_moved, refused=tuple(lost))
            if is_late:
                raise StoreError(Cause.TIMEOUT, f"volume {name} is still being written or read: try again")
            time.sleep(_TURN_S)

    def get(self, block: BlockHash) -> bytes:
        """See `StorageAgent.get`."""
        at, key = self._need(block)
        buffer = self._buffers().slot(0)
        for failure in self._books.room.volumes[at.volume].read([SlotIO(at.place, key, buffer)]):
            raise StoreError(failure.cause, failure.message)
        return bytes(buffer)

    def put(self, extent: bytes, codec: ExtentCodec) -> None:
        """See `StorageAgent.put`."""
        if len(extent) != self._extent_bytes:
            raise StoreError(Cause.CORRUPT, f"{len(extent)} bytes are no extent of {self._extent_bytes}")
        buffer = self._buffers().slot(0)
        buffer[:] = extent
        block = codec.read_block(buffer).key.hash
        codec.verify(buffer, block)
        at, key = self._need(block)
        if not self._copy_all([(at, key)], at.volume, is_there=True).moved:
            raise StoreError(Cause.NO_SPACE, f"volume {at.volume!r} has no place for block {block.hex()} now")

    # -- inside -------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._is_over:
            raise StoreError(Cause.CANCELLED, "the storage agent is being closed")

    def _need(self, block: BlockHash) -> tuple[At, BlockKey]:
        found = self._find([block]).get(block)
        if found is None:
            raise StoreError(Cause.MISSING, f"no volume has block {block.hex()}")
        return found

    def _buffers(self) -> HostArena:
        """For a batch of extents."""
        self._go_on()
        if self._arena is None:
            self._arena = HostArena(self._n_batch, self._extent_bytes)
        return self._arena

    def _find(
        self, hashes: Sequence[BlockHash], names: Sequence[str] | None = None
    ) -> dict[BlockHash, tuple[At, BlockKey]]:
        """Where blocks are, on these volumes or on any; what is listed but nobody's is not."""
        found: dict[BlockHash, tuple[At, BlockKey]] = {}
        for name in list(self._books.room.volumes) if names is None else names:
            left = [block for block in hashes if block not in found]
            for block, (place, key) in self._books.room.volumes[name].find(left).items():
                if self._books.slot_at(at := At(name, place)) is not None:
                    found[block] = at, key
        return found

    def _drop(self, found: Mapping[BlockHash, tuple[At, BlockKey]]) -> list[BlockHash]:
        """Forget blocks, but those whose slot is being written; with the lock. Those that are gone."""
        slots = {block: self._books.movable(at) for block, (at, _) in found.items()}
        gone = {block: slot for block, slot in slots.items() if slot is not None}
        self._tell([], list(gone))
        try:
            self._books.forget(gone.values())
        except StoreError as error:
            logger.debug("dropped, but listed as before: %s", error)
        return list(gone)

    def _copy_all(self, entries: Sequence[tuple[At, BlockKey]], target: str, *, is_there: bool = False) -> _Outcome:
        """Copy up to a batch of blocks to a volume, waiting while it grows."""
        volume = self._books.room.volumes[target]
        outcome = self._copy(entries, target, is_there=is_there)
        waited_s = 0.0
        while outcome.no_room and waited_s < _GROW_S and volume.capacity().is_growing:
            left = [(at, key) for at, key in entries if key.hash in set(outcome.no_room)]
            again = self._copy(left, target, is_there=is_there)
            outcome = _Outcome(outcome.moved + again.moved, outcome.failed + again.failed, again.no_room)
            if not again.moved:
                time.sleep(_TURN_S)
                waited_s += _TURN_S
        return outcome

    def _copy(
        self, entries: Sequence[tuple[At, BlockKey]], target: str, below: int | None = None, *, is_there: bool = False
    ) -> _Outcome:
        """Copy up to a batch of blocks to a volume, and bind their slots there. `is_there`: in the first buffer."""
        arena = self._buffers()
        outcome = _Outcome()
        copies: list[_Copy] = []
        with self._lock:
            for was, key in entries:
                slot = self._books.movable(was)
                if is_there and key.hash not in self._find([key.hash], [was.volume]):
                    slot = None  # another block's by now
                to = None if slot is None else self._books.begin_move(slot, was, target, below)
                if slot is None:
                    outcome.failed.append(key.hash)
                elif to is None:
                    outcome.no_room.append(key.hash)
                else:
                    copies.append(_Copy(slot, key, was, At(target, to), arena.slot(len(copies))))
        if not copies:
            return outcome
        failed = set[BlockHash]() if is_there else _read(self._books.room, copies)
        good = [copy for copy in copies if copy.key.hash not in failed]
        failures = self._books.room.volumes[target].write(
            [SlotIO(copy.to.place, copy.key, copy.buffer) for copy in good]
        )
        failed |= {good[failure.index].key.hash for failure in failures}
        with self._lock:
            ends = [(copy.slot, copy.was, copy.to, copy.key.hash not in failed) for copy in copies]
            holds = self._books.end_move(ends)
            for copy, is_moved in zip(copies, holds, strict=True):
                (outcome.moved if is_moved else outcome.failed).append(copy.key.hash)
                if is_moved and copy.was.volume != target:
                    self._tell([(copy.key, target)], [])
        return outcome


def _read(room: Room, copies: Sequence[_Copy]) -> set[BlockHash]:
    """Read blocks where they are; those that failed."""
    failed: set[BlockHash] = set()
    for name in {copy.was.volume for copy in copies}:
        some = [copy for copy in copies if copy.was.volume == name]
        items = [SlotIO(copy.was.place, copy.key, copy.buffer) for copy in some]
        failed |= {some[failure.index].key.hash for failure in room.volumes[name].read(items)}
    return failed
