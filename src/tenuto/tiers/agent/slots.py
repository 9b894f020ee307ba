"""A store over several volumes: slots of the tier, places of volumes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from tenuto.errors import Cause
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.agent.bindings import At
from tenuto.tiers.agent.books import Books, elsewhere
from tenuto.tiers.agent.messages import HOME
from tenuto.tiers.agent.room import Room
from tenuto.tiers.agent.volume import Volume
from tenuto.tiers.disk import DiskStore
from tenuto.tiers.store import OWN, Capacity, Failure, Layers, SlotIO, StoreNews
from tenuto.tokens import BlockHash, BlockKey

_FAULTS = (Cause.IO_ERROR, Cause.NO_SPACE, Cause.TIMEOUT)
_Do = Callable[[Volume, list[SlotIO]], list[Failure]]


class SlotStore:
    """See `tenuto.tiers.store.Store`; `lock` is that of the books, and not held while bytes move.

    A slot keeps its number while its block is moved. New blocks go home while there is room, then to the others; a
    volume that fails gets none for a while.
    """

    def __init__(self, home: DiskStore, books: Books, codec: ExtentCodec) -> None:
        self.home = home
        self._books = books
        self._codec = codec
        self._lock = threading.Lock()
        self._news = StoreNews(moved=elsewhere(books))
        self._arena: memoryview | None = None
        self._capacity: Capacity | None = None

    def capacity(self) -> Capacity:
        """See `Store`: of all volumes that are not being drained. Does not wait: while books change, as before."""
        if self._lock.acquire(blocking=self._capacity is None):
            try:
                self._capacity = self._books.capacity()
            finally:
                self._lock.release()
        assert self._capacity is not None
        return self._capacity

    def write(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        slots = [item.slot for item in items]
        with self._lock:
            ats = self._books.place(slots)
            self._books.room.pin(ats)
        return self._write(items, ats, lambda volume, some: volume.write(some), is_last=True)

    def write_layers(self, items: Sequence[SlotIO], layers: Layers) -> list[Failure]:
        """See `Store`."""
        slots = [item.slot for item in items]
        with self._lock:
            ats = self._books.place(slots) if layers[0] == 0 else self._books.writing_at(slots)
            self._books.room.pin(ats)
        return self._write(items, ats, lambda volume, some: volume.write_layers(some, layers), is_last=False)

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        with self._lock:
            ats = self._books.writing_at(item.slot for item in items)
            self._books.room.pin(ats)
        return self._write(items, ats, lambda volume, some: volume.commit(some), is_last=True)

    def read(self, items: Sequence[SlotIO], volume: str = OWN, layers: Layers | None = None) -> list[Failure]:
        """See `Store`."""
        if volume != OWN:
            return self.home.read(items, volume, layers)
        with self._reading([item.slot for item in items]) as ats:
            return self._by_volume(items, ats, lambda one, some: one.read(some, layers=layers), Cause.MISSING)

    def forget(self, slots: Sequence[int]) -> None:
        """See `Store`."""
        with self._lock:
            self._books.forget(slots)

    def reset(self, namespace: bytes, epoch: int) -> None:
        """See `Store`."""
        self._codec = ExtentCodec(self._codec.layout, namespace)
        with self._lock:
            self._books.reset(namespace, epoch)
            self._news = StoreNews()

    def attach(self, arena: memoryview) -> None:
        """Most buffers will lie in this memory, until `detach`."""
        with self._lock:
            self._arena = arena
            volumes = list(self._books.room.volumes.values())
        for volume in volumes:
            volume.attach(arena)

    def detach(self) -> None:
        """They will no more. Not while one of them is in use."""
        with self._lock:
            self._arena = None
            volumes = list(self._books.room.volumes.values())
        for volume in volumes:
            volume.detach()

    def take_news(self) -> StoreNews:
        """What became of blocks since the last call, which the manager does not know."""
        if not self._news:
            return StoreNews()
        with self._lock:
            news, self._news = self._news, StoreNews()
        return news

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        with self._lock:
            self._books.check()

    # -- inside -------------------------------------------------------------------------------------

    def _by_volume(
        self, items: Sequence[SlotIO], ats: Sequence[At | None], do: _Do, absent: Cause = Cause.NO_SPACE
    ) -> list[Failure]:
        """Do it with each volume's items, at their places; failures carry the index of the whole batch.

        `absent`: why what has no place fails.
        """
        failures: list[Failure] = []
        groups: dict[str, list[tuple[int, int]]] = {}
        for index, at in enumerate(ats):
            if at is None:
                failures.append(Failure(index, absent, "no volume has a place for it"))
            else:
                groups.setdefault(at.volume, []).append((index, at.place))
        for name, entries in groups.items():
            volume = self._books.room.volumes.get(name)
            if volume is None:
                failures += [Failure(index, Cause.MISSING, f"volume {name} is gone") for index, _ in entries]
                continue
            some = [SlotIO(place, items[index].key, items[index].buffer) for index, place in entries]
            failures += [Failure(entries[fail.index][0], fail.cause, fail.message) for fail in do(volume, some)]
        return failures

    def _write(self, items: Sequence[SlotIO], ats: Sequence[At | None], do: _Do, *, is_last: bool) -> list[Failure]:
        """Write blocks, or some of their layers: what failed is given up, what did not go home is told."""
        failures = [Failure(index, Cause.IO_ERROR, "internal error") for index in range(len(items))]
        try:
            failures = self._by_volume(items, ats, do)
        finally:
            failed = {failure.index for failure in failures}
            over = [index for index in range(len(items)) if is_last or index in failed]
            with self._lock:
                holds = self._books.written(
                    [items[index].slot for index in over],
                    [ats[index] for index in over],
                    [index not in failed for index in over],
                )
                for index, is_there in zip(over, holds, strict=True):
                    at = ats[index]
                    if is_there and at is not None and at.volume != HOME:
                        self._news.moved.append((items[index].key, at.volume))
                self._books.room.unpin(ats)
                _tell_faults(self._books.room, ats, failures)
        return failures

    @contextmanager
    def _reading(self, slots: Sequence[int]) -> Generator[list[At | None]]:
        """Where slots are; none of these places is given away meanwhile."""
        with self._lock:
            ats = self._books.where(slots)
            self._books.room.pin(ats)
        try:
            yield ats
        finally:
            with self._lock:
                self._books.room.unpin(ats)

    def _tell(self, moved: Sequence[tuple[BlockKey, str]], lost: Sequence[BlockHash]) -> None:
        """With the lock."""
        self._news.moved += moved
        self._news.lost += lost


def _tell_faults(room: Room, ats: Sequence[At | None], failures: Sequence[Failure]) -> None:
    """Tell of volumes that wrote something, and of those that wrote nothing, as their disk is at fault."""
    failed = {failure.index: failure for failure in failures}
    by_volume: dict[str, list[Failure | None]] = {}
    for index, at in enumerate(ats):
        if at is not None:
            by_volume.setdefault(at.volume, []).append(failed.get(index))
    for name, fates in by_volume.items():
        faults = [fate.message for fate in fates if fate is not None and fate.cause in _FAULTS]
        if len(faults) == len(fates):
            room.tell(name, faults[0])
        elif None in fates:
            room.tell(name, "")
