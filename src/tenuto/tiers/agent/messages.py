"""What an agent and those who drive it tell each other."""

from __future__ import annotations

import msgspec

from tenuto.tokens import BlockHash

HOME = ""
"""The name of the volume that new blocks are written to."""


class VolumeInfo(msgspec.Struct, frozen=True):
    """A volume now. `n_places`: blocks it has room for when it has grown; `file_bytes`: what it takes."""

    name: str
    url: str
    n_places: int
    n_blocks: int
    file_bytes: int
    is_draining: bool = False

    @property
    def n_spare(self) -> int:
        """Blocks that it has room for still."""
        return max(0, self.n_places - self.n_blocks)


class AgentInfo(msgspec.Struct, frozen=True, tag="agent"):
    """Whose blocks they are: `namespace` as in events, `worker` and `dp_rank` as their source; `rank` of the engine."""

    namespace: bytes
    instance: str
    rank: int
    worker: str
    dp_rank: int
    extent_bytes: int
    volumes: tuple[VolumeInfo, ...]


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """How many blocks lie in the wanted volume now, those that were not there to be moved, those it had no room for."""

    n_moved: int
    absent: tuple[BlockHash, ...] = ()
    refused: tuple[BlockHash, ...] = ()


class Compacted(msgspec.Struct, frozen=True, tag="compacted"):
    """Blocks that were moved together, and the bytes that the volume's files take less."""

    n_moved: int
    freed_bytes: int


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """Asks for an `AgentInfo`."""


class Register(msgspec.Struct, frozen=True, tag="register_volume"):
    """See `StorageAgent.register_volume`."""

    name: str
    url: str
    capacity_bytes: int


class Unregister(msgspec.Struct, frozen=True, tag="unregister_volume"):
    """See `StorageAgent.unregister_volume`."""

    name: str


class Move(msgspec.Struct, frozen=True, tag="move"):
    """See `StorageAgent.move`."""

    hashes: tuple[bytes, ...]
    volume: str


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """See `StorageAgent.drop`."""

    hashes: tuple[bytes, ...]


class Compact(msgspec.Struct, frozen=True, tag="compact"):
    """See `StorageAgent.compact`."""

    volume: str


class Get(msgspec.Struct, frozen=True, tag="get"):
    """Asks for one block's extent."""

    hash: bytes


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Gives one block's extent, in the place of what this rank has of it."""

    extent: bytes


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The answer where a request can't be done; `kind` is an error's name, `cause` a `StoreError`'s."""

    message: str
    cause: str = ""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The answer: of the kind that the request's method gives."""

    value: AgentInfo | Moved | Compacted | int | bytes | None = None


Request = Describe | Register | Unregister | Move | Drop | Compact | Get | Put
