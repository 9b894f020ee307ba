"""The store under the disk tier, and what drives its volumes."""

from __future__ import annotations

import logging
import re
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from tenuto.errors import ConfigError
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.agent.books import Books
from tenuto.tiers.agent.mapfile import Listed, MapFile
from tenuto.tiers.agent.messages import HOME, AgentInfo, Compacted, Moved, VolumeInfo
from tenuto.tiers.agent.moves import Mover
from tenuto.tiers.agent.opening import VolumeOpener, open_listed
from tenuto.tiers.agent.slots import SlotStore
from tenuto.tiers.agent.volume import Volume
from tenuto.tiers.disk import DiskStore
from tenuto.tiers.disk.instance import Claim
from tenuto.tiers.disk.peers import Peers
from tenuto.tokens import BlockHash, BlockKey, Namespace

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_MOST_BYTES = (1 << 63) - 1


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


class StorageAgent(SlotStore):
    """A store over `home` and further volumes, which it owns until `close`.

    What is moved is verified on the way, and read where it was until it is where it goes; a move that is overtaken by
    a write of its slot, or by a crash, costs nothing but itself.
    """

    def __init__(self, home: DiskStore, codec: ExtentCodec, identity: Identity) -> None:
        self.identity = identity
        self._opener = VolumeOpener(home.claim.folder, identity.namespace, codec, identity.rank, identity.split)
        self._file = MapFile(home.claim.folder)
        try:
            volumes: dict[str, Volume] = {HOME: home, **open_listed(self._opener, self._file.volumes())}
            books = Books(volumes, self._file)
            self.recovered: list[tuple[int, BlockKey]] = books.recovered
            """(slot, key) of every block found when the store was opened, oldest first."""
        except BaseException:
            self._file.close()
            raise
        super().__init__(home, books, codec)
        self._control: _Closable | None = None
        self._mover = Mover(books, self._lock, codec.layout.extent_bytes, self._tell)

    @property
    def claim(self) -> Claim:
        """The folder of the home volume, which this process holds."""
        return self.home.claim

    @property
    def peers(self) -> Peers:
        """What other engines of this node hold in their home volumes."""
        return self.home.peers

    def close(self) -> None:
        """See `Store`. Ends a move that is under way."""
        if self._control is not None:
            self._control.close()
        self._mover.stop()
        with ExitStack() as closing:
            closing.callback(self.home.close)
            closing.callback(self._file.close)
            for name, volume in self._books.room.volumes.items():
                if name != HOME:
                    closing.callback(volume.close)

    def served_by(self, control: _Closable) -> None:
        """Who drives this agent ends with it."""
        self._control = control

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
                    volume.file_bytes, name in self._books.room.draining,
                )
                for name, volume in self._books.room.volumes.items()
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
        if capacity_bytes > _MOST_BYTES:
            raise ConfigError(f"volume {name}: a capacity of {capacity_bytes} bytes is more than there can be")
        with self._mover.alone():
            with self._lock:
                known = self._listed(name)
                if name in self._books.room.volumes and known is not None:
                    if (known.url, known.capacity_bytes) == (url, capacity_bytes):
                        return
                    raise ConfigError(
                        f"volume {name} is {known.url} with {known.capacity_bytes} bytes already; unregister it first"
                    )
            owner = known.owner if known and known.url == url else secrets.token_hex(8)
            listed = Listed(name, url, capacity_bytes, owner)
            self._opener.check(listed)
            with self._lock:
                self._file.add(listed)  # first: who is killed behind this finds all that was made
            with ExitStack() as undo:
                undo.callback(self._unlist, name, known)
                volume = self._opener.open(listed)
                undo.callback(volume.close)
                if volume.recovered:  # of a time before it was registered here
                    volume.forget([place for place, _ in volume.recovered])
                if self._arena is not None:
                    volume.attach(self._arena)
                with self._lock:
                    self._books.room.add(name, volume)
                undo.pop_all()
        logger.info("tenuto: volume %s: %s", name, url)

    def unregister_volume(self, name: str) -> Moved:
        """Move its blocks to the other volumes, home first; those there is no room for are lost. Then close it.

        One that could not be opened at the start is forgotten. Raises `ConfigError` for a name of none.
        """
        with self._mover.alone():
            with self._lock:
                is_off = name not in self._books.room.volumes and self._listed(name) is not None
                if is_off:
                    self._file.remove(name)
                    return Moved(0)
                if name == HOME:
                    raise ConfigError("the home volume can't be given up")
                self._books.room.need(name)
                self._books.room.draining.add(name)
            try:
                moved = self._mover.drain(name)
                with self._lock:
                    volume = self._books.room.remove(name)
            except BaseException:
                with self._lock:
                    self._books.room.draining.discard(name)
                raise
            volume.detach()
            volume.close()
            self._opener.erase(name, volume)
            with self._lock:
                self._file.remove(name)  # last: who is killed before finds it empty, and leaves nothing behind
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

    def _listed(self, name: str) -> Listed | None:
        """How a volume was registered; with the lock."""
        return next((volume for volume in self._file.volumes() if volume.name == name), None)

    def _unlist(self, name: str, known: Listed | None) -> None:
        with self._lock:
            self._file.remove(name) if known is None else self._file.add(known)

    def __repr__(self) -> str:
        counts = Counter({name: volume.n_blocks for name, volume in list(self._books.room.volumes.items())})
        return f"<StorageAgent {self.claim.folder}: {dict(counts)}>"
