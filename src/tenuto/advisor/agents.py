"""What the advisor drives: the agent of one engine's disk tier, and what it says of itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tenuto.errors import ConfigError
from tenuto.tiers.agent.client import AgentClient, find_agents
from tenuto.tiers.agent.messages import HOME, AgentInfo, Compacted, Moved, VolumeInfo
from tenuto.tokens import BlockHash

__all__ = ["HOME", "Agent", "AgentInfo", "Agents", "Compacted", "Moved", "Sockets", "VolumeInfo"]


_ANSWER_S = 60.0  # one engine that hangs keeps the others waiting for so long


class Agent(Protocol):
    """Every call may raise `StoreError` or another `TenutoError`: then nothing is lost, and it may be asked again."""

    def describe(self) -> AgentInfo:
        """What it is, and its volumes."""
        ...

    def register_volume(self, name: str, url: str, capacity_bytes: int) -> None:
        """Add a volume."""
        ...

    def unregister_volume(self, name: str) -> Moved:
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
        """The agent behind one. Raises `TenutoError` when nobody answers: `ConfigError` when nobody ever will."""
        ...


class Sockets:
    """The agents of engines on this machine."""

    def find(self, root: Path) -> list[Path]:
        """See `Agents`."""
        return find_agents(root)

    def connect(self, path: Path) -> Agent:
        """See `Agents`."""
        if not os.access(path, os.R_OK | os.W_OK) and path.exists():
            raise ConfigError(f"{path} is of another user; run the advisor as the user who runs the engine")
        return AgentClient(path, timeout_s=_ANSWER_S)
