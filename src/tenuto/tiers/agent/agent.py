"""The store under the disk tier: slots of the tier, places of volumes."""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.agent.bindings import At
from tenuto.tiers.agent.books import Books
from tenuto.tiers.agent.mapfile import Listed, MapFile
from tenuto.tiers.agent.messages import HOME, AgentInfo, Compacted, Moved, VolumeInfo
from tenuto.tiers.agent.moves import Mover
from tenuto.tiers.agent.opening import VolumeOpener, open_listed
from tenuto.tiers.agent.volume import Volume
from tenuto.tiers.disk import DiskStore
from tenuto.tiers.disk.instance import Claim
from tenuto.tiers.disk.peers import Peers
from tenuto.tiers.store import OWN, Capacity, Failure, Layers, SlotIO, StoreNews
from tenuto.tokens import BlockHash, BlockKey, Namespace

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_Do = Callable[[Volume, list[SlotIO]], list[Failure]]


class _Closable(Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose agent it is: the engine as in events, its rank, and how its ranks share a block."""

    namespace: Namespace
    worker: str = ""
    dp_rank: int = 0
    rank: int = 0
    split: str = "tp1"


class StorageAgent:
    """See `tenuto.tiers.store.Store`. Owns `home` and the further volumes until `close`.

    A slot keeps its number while its block is moved. New blocks go home while there is room, then to the others. What
    is moved is verified on the way, and read where it was until it is where it goes; a move that is overtaken by a
    write of its slot, or by a crash, costs nothing but itself.
    """

    def __init__(self, home: DiskStore, codec: ExtentCodec, identity: Identity) -> None:
        self.home = home
        self.identity = identity
        self._codec = codec
        self._lock = threading.Lock()
        self._opener = VolumeOpener(home.claim.folder, identity.namespace, codec, identity.rank, identity.split)
        self._file = MapFile(home.claim.folder)
        try:
            volumes: dict[str, Volume] = {HOME: home, **open_listed(self._opener, self._file.volumes())}
            self._books = Books(volumes, self._file)
            self.recovered: list[tuple[int, BlockKey]] = self._books.recovered
            """(slot, key) of every block found when the store was opened, oldest first."""
        except BaseException:
            self._file.close()
            raise
        self._news = StoreNews(moved=self._books.elsewhere())
        self._arena: memoryview | None = None
        self._control: _Closable | None = None
        self._mover = Mover(self._books, self._lock, codec.layout.extent_bytes, self._tell)

    # -- the store ----------------------------------------------------------------------------------

    @property
    def claim(self) -> Claim:
        """The folder of the home volume, which this process holds."""
        return self.home.claim

    @property
    def peers(self) -> Peers:
        """What other engines of this node hold in their home volumes."""
        return self.home.peers

    def capacity(self) -> Capacity:
        """See `Store`: of all volumes that are not being drained."""
        with self._lock:
            return self._books.capacity()

    def write(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        try:
            with self._lock:
                ats = self._books.place([item.slot for item in items])
        except StoreError as error:
            return _all_failed(items, error)
        failures = self._by_volume(items, ats, lambda volume, some: volume.write(some))
        self._written(items, ats, failures)
        return failures

    def write_layers(self, items: Sequence[SlotIO], layers: Layers) -> list[Failure]:
        """See `Store`."""
        slots = [item.slot for item in items]
        try:
            with self._lock:
                ats = self._books.place(slots) if layers[0] == 0 else self._books.where(slots)
        except StoreError as error:
            return _all_failed(items, error)
        return self._by_volume(items, ats, lambda volume, some: volume.write_layers(some, layers))

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        with self._lock:
            ats = self._books.where([item.slot for item in items])
        failures = self._by_volume(items, ats, lambda volume, some: volume.commit(some))
        self._written(items, ats, failures)
        return failures

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

    def close(self) -> None:
        """See `Store`. Ends a move that is under way."""
        if self._control is not None:
            self._control.close()
        self._mover.stop()
        with ExitStack() as closing:
            closing.callback(self.home.close)
            closing.callback(self._file.close)
            for name, volume in self._books.volumes.items():
                if name != HOME:
                    closing.callback(volume.close)

    def served_by(self, control: _Closable) -> None:
        """Who drives this agent ends with it."""
        self._control = control

    def attach(self, arena: memoryview) -> None:
        """Most buffers will lie in this memory, until `detach`."""
        with self._lock:
            self._arena = arena
            volumes = list(self._books.volumes.values())
        for volume in volumes:
            volume.attach(arena)

    def detach(self) -> None:
        """They will no more. Not while one of them is in use."""
        with self._lock:
            self._arena = None
            volumes = list(self._books.volumes.values())
        for volume in volumes:
            volume.detach()

    def take_news(self) -> StoreNews:
        """What became of blocks since the last call, which the manager does not know."""
        if not self._news:
            return StoreNews()
        with self._lock:
            news, self._news = self._news, StoreNews()
        return news

    # -- the volumes, for who drives them -----------------------------------------------------------

    def describe(self) -> AgentInfo:
        """What there is now."""
        me = self.identity
        with self._lock:
            listed = {volume.name: volume.url for volume in self._file.volumes()}
            urls = {HOME: str(self.claim.instance.parents[1])} | listed
            volumes = tuple(
                VolumeInfo(
                    name, urls.get(name, ""), volume.most_blocks, volume.n_blocks,
                    volume.file_bytes, name in self._books.draining,
                )
                for name, volume in self._books.volumes.items()
            )  # fmt: skip
        return AgentInfo(
            self._codec.namespace, self.claim.instance.name, me.rank, me.worker, me.dp_rank,
            self._codec.layout.extent_bytes, volumes,
        )  # fmt: skip

    def register_volume(self, name: str, url: str, capacity_bytes: int) -> None:
        """Use a folder (a path, file://PATH) or an object store (s3://BUCKET/PREFIX) too, after a restart as well.

        The same again changes nothing. Raises `ConfigError` for what can't be a volume, `StoreError` for a reason that
        may pass.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"volume {name!r} is no name; give small letters, digits and -, a letter first")
        with self._mover.alone():
            with self._lock:
                known = next((volume for volume in self._file.volumes() if volume.name == name), None)
                if name in self._books.volumes and known is not None:
                    if (known.url, known.capacity_bytes) == (url, capacity_bytes):
                        return
                    raise ConfigError(
                        f"volume {name} is {known.url} with {known.capacity_bytes} bytes already; unregister it first"
                    )
            listed = known if known and known.url == url else Listed(name, url, capacity_bytes, secrets.token_hex(8))
            listed = Listed(name, url, capacity_bytes, listed.owner)
            volume = self._opener.open(listed)
            with ExitStack() as undo:
                undo.callback(volume.close)
                if volume.recovered:  # of a time before it was registered here
                    volume.forget([place for place, _ in volume.recovered])
                if self._arena is not None:
                    volume.attach(self._arena)
                with self._lock:
                    self._file.add(listed)
                    self._books.add(name, volume)
                undo.pop_all()
        logger.info("tenuto: volume %s: %s", name, url)

    def unregister_volume(self, name: str) -> Moved:
        """Move its blocks to the other volumes, home first; those there is no room for are lost. Then close it.

        Raises `ConfigError` for a name of none.
        """
        with self._mover.alone():
            with self._lock:
                self._books.need(name, may_be_home=False)
                self._books.draining.add(name)
            try:
                moved = self._mover.drain(name)
                with self._lock:
                    volume = self._books.remove(name)
            except BaseException:
                with self._lock:
                    self._books.draining.discard(name)
                raise
            volume.detach()
            volume.close()
            self._opener.erase(name, volume)
        logger.info("tenuto: volume %s is no more: %d blocks moved, %d lost", name, moved.n_moved, len(moved.refused))
        return moved

    def move(self, hashes: Sequence[bytes], volume: str) -> Moved:
        """Have these blocks lie in `volume`. Raises `ConfigError` for a name of none, `StoreError`."""
        with self._mover.alone():
            return self._mover.move([BlockHash(block) for block in hashes], volume)

    def drop(self, hashes: Sequence[bytes]) -> int:
        """Forget these blocks; how many there were. Raises `StoreError`."""
        with self._mover.alone():
            return self._mover.drop([BlockHash(block) for block in hashes])

    def compact(self, volume: str) -> Compacted:
        """Move a volume's blocks together, and give its disk what is free behind them. Raises as `move`."""
        with self._mover.alone():
            return self._mover.compact(volume)

    def get(self, block: bytes) -> bytes:
        """The verified extent of a block. Raises `StoreError` (MISSING) where there is none."""
        with self._mover.alone():
            return self._mover.get(BlockHash(block))

    def put(self, extent: bytes) -> None:
        """Write a block that is there once more, from its whole extent: to mend a copy that is damaged.

        Raises `StoreError` (CORRUPT) for bytes that are none of a block's, (MISSING) for a block that is not there: new
        ones come from the manager, which knows of them.
        """
        with self._mover.alone():
            self._mover.put(extent, self._codec)

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
        groups: dict[str, list[int]] = {}
        for index, at in enumerate(ats):
            if at is None:
                failures.append(Failure(index, absent, "no volume has a place for it"))
            else:
                groups.setdefault(at.volume, []).append(index)
        for name, indices in groups.items():
            volume = self._books.volumes.get(name)
            if volume is None:
                failures += [Failure(index, Cause.MISSING, f"volume {name} is gone") for index in indices]
                continue
            places = [at.place for index in indices if (at := ats[index]) is not None]
            some = [
                SlotIO(place, items[index].key, items[index].buffer)
                for index, place in zip(indices, places, strict=True)
            ]
            failures += [Failure(indices[fail.index], fail.cause, fail.message) for fail in do(volume, some)]
        return failures

    def _written(self, items: Sequence[SlotIO], ats: Sequence[At | None], failures: Sequence[Failure]) -> None:
        """Blocks are whole; those of a batch that did not go home are told."""
        failed = {failure.index for failure in failures}
        with self._lock:
            self._books.written(item.slot for item in items)
            for index, (item, at) in enumerate(zip(items, ats, strict=True)):
                if at is not None and at.volume != HOME and index not in failed:
                    self._news.moved.append((item.key, at.volume))

    @contextmanager
    def _reading(self, slots: Sequence[int]) -> Generator[list[At | None]]:
        """Where slots are; none of these places is given away meanwhile."""
        with self._lock:
            ats = self._books.where(slots)
            self._books.pin(ats)
        try:
            yield ats
        finally:
            with self._lock:
                self._books.unpin(ats)

    def _tell(self, moved: Sequence[tuple[BlockKey, str]], lost: Sequence[BlockHash]) -> None:
        """With the lock."""
        self._news.moved += moved
        self._news.lost += lost

    def __repr__(self) -> str:
        counts = Counter({name: volume.n_blocks for name, volume in self._books.volumes.items()})
        return f"<StorageAgent {self.claim.folder}: {dict(counts)}>"


def _all_failed(items: Sequence[SlotIO], error: StoreError) -> list[Failure]:
    return [Failure(index, error.cause, str(error)) for index in range(len(items))]
