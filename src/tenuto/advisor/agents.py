"""What the advisor drives: the agent of one engine's disk tier, and what it says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tenuto.tokens import BlockHash

HOME = ""
"""The volume where an engine writes new blocks, by its name on the wire."""


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """One place of the disk tier. `n_places`: blocks it has room for; `file_bytes`: what it takes on its disk."""

    name: str
    url: str
    n_places: int
    n_spare: int
    n_blocks: int
    file_bytes: int
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """One rank of an engine. `worker`, `dp_rank`: those of its events' source; `extent_bytes`: of a block here."""

    namespace: bytes
    instance: str
    rank: int
    worker: str
    dp_rank: int
    extent_bytes: int
    volumes: tuple[VolumeInfo, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """How a move ended: blocks that are in the new place, that were not there to move, that it had no room for."""

    n_moved: int = 0
    absent: list[BlockHash] = field(default_factory=list[BlockHash])
    refused: list[BlockHash] = field(default_factory=list[BlockHash])


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    n_moved: int = 0
    freed_bytes: int = 0


class Agent(Protocol):
    """Every call may raise `StoreError` or another `TenutoError`: then nothing is lost, and it may be asked again."""

    def describe(self) -> AgentInfo:
        """What it is, and its volumes."""
        ...

    def register_volume(self, name: str, url: str, capacity_bytes: int) -> None:
        """Add a volume."""
        ...

    def unregister_volume(self, name: str) -> None:
        """Empty a volume and give it up."""
        ...

    def move(self, hashes: Sequence[BlockHash], volume: str) -> Moved:
        """Bring blocks to a volume; their bytes are verified, and readers go on."""
        ...

    def drop(self, hashes: Sequence[BlockHash]) -> int:
        """Ask the engine to forget blocks; how many it will."""
        ...

    def compact(self, volume: str) -> Compacted:
        """Give back the free room inside a volume's files."""
        ...


class Agents(Protocol):
    """How agents are found."""

    def find(self, root: Path) -> list[Path]:
        """The control sockets of the engines whose disk tier is under this folder."""
        ...

    def connect(self, path: Path) -> Agent:
        """The agent behind one. Raises `TenutoError` when nobody answers."""
        ...


class NoAgents:
    """Finds none: the index is kept, and orders go to nobody."""

    def find(self, root: Path) -> list[Path]:
        """None."""
        del root
        return []

    def connect(self, path: Path) -> Agent:
        """There is nothing to connect to."""
        raise FileNotFoundError(path)
