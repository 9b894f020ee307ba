"""The agents of a disk's engines: found, connected, described, and told what to do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from tenuto.advisor.agents import HOME, Agent, AgentInfo, Agents, Moved, VolumeInfo
from tenuto.advisor.core import Task, WorkerName
from tenuto.advisor.orders import Compact, Move
from tenuto.advisor.settings import VolumeSetting
from tenuto.errors import TenutoError
from tenuto.tokens import BlockHash

logger = logging.getLogger(__name__)

_AWAY = (TenutoError, OSError)


@dataclass(slots=True)
class _Member:
    agent: Agent
    info: AgentInfo


class Fleet:
    """Every rank of an engine has an agent, and all are told the same. One thread at a time.

    An agent that does not answer is dropped, and looked for again by the next `refresh`: its engine has lost nothing.
    """

    def __init__(self, agents: Agents, root: Path | None, volumes: Sequence[VolumeSetting]) -> None:
        self._agents = agents
        self._root = root
        self._volumes = [volume for volume in volumes if volume.name != HOME]
        self._members: dict[Path, _Member] = {}
        self._refused: set[tuple[Path, str]] = set()

    def refresh(self) -> None:
        """Look for agents, ask each how its volumes are, and register those of the settings that it lacks."""
        if self._root is None:
            return
        try:
            found = self._agents.find(self._root)
        except _AWAY as error:
            logger.warning("tenuto: no agents are found under %s: %s", self._root, error)
            return
        for path in found:
            member = self._members.get(path)
            try:
                agent = self._agents.connect(path) if member is None else member.agent
                self._register(path, agent, agent.describe())
                info = agent.describe()
                self._members[path] = _Member(agent, info)
            except _AWAY as error:
                self._lose(path, error)
                continue
            if member is None:
                logger.info("tenuto: drives %s of %s, rank %d", info.instance, info.worker, info.rank)

    def workers(self) -> dict[WorkerName, list[AgentInfo]]:
        """The ranks of each engine."""
        found: dict[WorkerName, list[AgentInfo]] = {}
        for member in self._members.values():
            found.setdefault((member.info.worker, member.info.dp_rank), []).append(member.info)
        return found

    def carry_out(self, name: WorkerName, task: Task) -> tuple[dict[str, Any], Moved | None]:
        """Tell all ranks of an engine; what they say together, in words and, of a move, as one."""
        said: dict[str, Any] = {}
        moves: list[Moved] = []
        for path, member in list(self._members.items()):
            if (member.info.worker, member.info.dp_rank) != name:
                continue
            try:
                if isinstance(task.order, Move):
                    moves.append(member.agent.move(task.hashes, task.order.volume))
                elif isinstance(task.order, Compact):
                    compacted = member.agent.compact(task.order.volume)
                    said["freed_bytes"] = said.get("freed_bytes", 0) + compacted.freed_bytes
                else:
                    said["n_dropped"] = member.agent.drop(task.hashes)
            except _AWAY as error:
                self._lose(path, error)
                said["error"] = str(error)
        if not moves:
            return said, None
        absent = {block for moved in moves for block in moved.absent}
        refused = {block for moved in moves for block in moved.refused} - absent
        together = Moved(min(moved.n_moved for moved in moves), _in_order(task, absent), _in_order(task, refused))
        return said | {"n_moved": together.n_moved, "n_absent": len(absent), "n_refused": len(refused)}, together

    def _register(self, path: Path, agent: Agent, info: AgentInfo) -> None:
        there = {volume.name for volume in info.volumes}
        for volume in self._volumes:
            if volume.name in there or (path, volume.name) in self._refused:
                continue
            try:
                agent.register_volume(volume.name, volume.url, volume.capacity_bytes)
            except TenutoError as error:
                self._refused.add((path, volume.name))
                logger.warning("tenuto: volume %s is not taken by %s: %s", volume.name, info.instance, error)

    def _lose(self, path: Path, error: Exception) -> None:
        self._refused = {refused for refused in self._refused if refused[0] != path}
        if self._members.pop(path, None) is not None:
            logger.warning("tenuto: an agent is away, and is looked for again: %s", error)


def common_volumes(infos: Sequence[AgentInfo]) -> list[VolumeInfo]:
    """The volumes that all ranks of an engine have: as many places as the one with the fewest, all files' bytes."""
    common: list[VolumeInfo] = []
    for volume in infos[0].volumes:
        same = [other for info in infos for other in info.volumes if other.name == volume.name]
        if len(same) == len(infos):
            common.append(structs.replace(
                volume,
                n_places=min(other.n_places for other in same),
                n_blocks=max(other.n_blocks for other in same),
                file_bytes=sum(other.file_bytes for other in same),
                is_draining=any(other.is_draining for other in same),
            ))  # fmt: skip
    return common


def _in_order(task: Task, blocks: set[BlockHash]) -> tuple[BlockHash, ...]:
    return tuple(block for block in task.hashes if block in blocks)
