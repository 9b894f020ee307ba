"""The agents of a disk's engines: found, connected, described, and told what to do."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from tenuto.advisor.agents import HOME, Agent, AgentInfo, Agents, Moved, VolumeInfo
from tenuto.advisor.core import Task, WorkerName
from tenuto.advisor.orders import Compact, Move
from tenuto.advisor.settings import VolumeSetting
from tenuto.errors import Cause, ConfigError, StoreError, TenutoError
from tenuto.tokens import BlockHash

logger = logging.getLogger(__name__)

_PIECE_BYTES = 256 << 20  # asked to move at once: an agent has a deadline for each answer
_BACK_OFF_S = 60.0  # an agent that did not answer in time, or refused a volume, is not asked again for so long


@dataclass(slots=True)
class _Member:
    agent: Agent
    info: AgentInfo


class Fleet:
    """Every rank of an engine has an agent, and all are told the same. One thread at a time.

    An agent that does not answer, or answers nonsense, is dropped, and looked for again by the next `refresh`: its
    engine has lost nothing. In a dry run no volume is registered: those that lack are planned with as if they were.
    """

    def __init__(
        self, agents: Agents, root: Path | None, volumes: Sequence[VolumeSetting], *, is_dry_run: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._agents = agents
        self._root = root
        self._volumes = [volume for volume in volumes if volume.name != HOME]
        self._is_dry_run = is_dry_run
        self._clock = clock
        self._members: dict[Path, _Member] = {}
        self._names: dict[Path, WorkerName] = {}
        self._ask_at_s: dict[tuple[Path, str], float] = {}
        self._refused: dict[tuple[Path, str], str] = {}
        self._later_s: dict[Path, float] = {}
        self._said: set[str] = set()

    def refresh(self) -> None:
        """Look for agents, ask each how its volumes are, and register those of the settings that it lacks."""
        if self._root is None:
            return
        try:
            found = self._agents.find(self._root)
        except (TenutoError, OSError) as error:
            self._say_once(f"no agents are found under {self._root}: {error}")
            return
        for path in set(self._names) - set(found):
            self._forget(path)
            del self._names[path]
        for path in found:
            if self._clock() >= self._later_s.get(path, -math.inf):
                self._look(path)

    def workers(self) -> dict[WorkerName, list[AgentInfo]]:
        """The ranks of each engine."""
        found: dict[WorkerName, list[AgentInfo]] = {}
        for member in self._members.values():
            found.setdefault((member.info.worker, member.info.dp_rank), []).append(member.info)
        return found

    def names(self) -> set[WorkerName]:
        """Engines that have an agent, be it away for now."""
        return set(self._names.values())

    def refused(self) -> list[dict[str, str]]:
        """Volumes that engines did not take, and why."""
        return [
            {"agent": str(path), "volume": volume, "why": why} for (path, volume), why in list(self._refused.items())
        ]

    def carry_out(self, name: WorkerName, task: Task) -> tuple[dict[str, Any], Moved | None]:
        """Tell all ranks of an engine; what they say together, in words and, of a move, as one."""
        said: dict[str, Any] = {}
        moves: list[Moved] = []
        for path, member in list(self._members.items()):
            if (member.info.worker, member.info.dp_rank) != name:
                continue
            try:
                if isinstance(task.order, Move):
                    moves.append(_move(member, task.hashes, task.order.volume))
                elif isinstance(task.order, Compact):
                    compacted = member.agent.compact(task.order.volume)
                    said["freed_bytes"] = said.get("freed_bytes", 0) + compacted.freed_bytes
                else:
                    said["n_dropped"] = member.agent.drop(task.hashes)
            except Exception as error:  # noqa: BLE001 - border of an agent: whatever it does is its own fault
                self._lose(path, error)
                said["error"] = str(error)
        if not moves:
            return said, None
        absent = {block for moved in moves for block in moved.absent}
        refused = {block for moved in moves for block in moved.refused} - absent
        together = Moved(min(moved.n_moved for moved in moves), _in_order(task, absent), _in_order(task, refused))
        return said | {"n_moved": together.n_moved, "n_absent": len(absent), "n_refused": len(refused)}, together

    def _look(self, path: Path) -> None:
        member = self._members.get(path)
        try:
            agent = self._agents.connect(path) if member is None else member.agent
            info = agent.describe()
            self._names[path] = (info.worker, info.dp_rank)
            if self._is_dry_run:
                info = self._supposed(path, info)
            elif self._register(path, agent, info):
                info = agent.describe()
            self._members[path] = _Member(agent, info)
        except Exception as error:  # noqa: BLE001 - border of an agent
            self._lose(path, error)
            return
        if member is None:
            logger.info("tenuto: drives %s of %s, rank %d", info.instance, info.worker, info.rank)

    def _register(self, path: Path, agent: Agent, info: AgentInfo) -> bool:
        """Each volume once, also such as it has, since the agent knows whether it is the same; refused ones again."""
        now_s = self._clock()
        wanted = [volume for volume in self._volumes if now_s >= self._ask_at_s.get((path, volume.name), now_s)]
        for volume in wanted:
            self._ask_at_s[path, volume.name] = now_s + _BACK_OFF_S
            try:
                agent.register_volume(volume.name, volume.url, volume.capacity_bytes)
            except TenutoError as error:
                if isinstance(error, StoreError) and error.cause is Cause.TIMEOUT:
                    raise
                self._refused[path, volume.name] = str(error)
                self._say_once(f"volume {volume.name} is not taken by {info.instance}: {error}")
            else:
                self._ask_at_s[path, volume.name] = math.inf
                self._refused.pop((path, volume.name), None)
        return bool(wanted)

    def _supposed(self, path: Path, info: AgentInfo) -> AgentInfo:
        """With the volumes that a first start in earnest would register."""
        there = {volume.name: volume for volume in info.volumes}
        lacking: list[VolumeInfo] = []
        for volume in self._volumes:
            known = there.get(volume.name)
            if known is None:
                n_places = volume.capacity_bytes // max(1, info.extent_bytes)
                lacking.append(VolumeInfo(volume.name, volume.url, n_places, 0, 0))
                self._say_once(
                    f"volume {volume.name} is not registered at {info.instance} yet: without --dry-run it would be, "
                    f"at {volume.url} with {volume.capacity_bytes} bytes"
                )
            elif known.url != volume.url:
                why = f"volume {volume.name} is {known.url} already; unregister it first"
                self._refused[path, volume.name] = why
                self._say_once(f"volume {volume.name} is not taken by {info.instance}: {why}")
        return structs.replace(info, volumes=(*info.volumes, *lacking))

    def _lose(self, path: Path, error: Exception) -> None:
        was_there = self._forget(path)
        if isinstance(error, StoreError) and error.cause is Cause.TIMEOUT:
            self._later_s[path] = self._clock() + _BACK_OFF_S
        what = str(error) if isinstance(error, TenutoError | OSError) else f"{type(error).__name__}: {error}"
        if was_there:
            logger.warning("tenuto: an agent is away, and is looked for again: %s", what)
        elif isinstance(error, ConfigError | PermissionError) or not isinstance(error, TenutoError | OSError):
            self._say_once(f"the agent at {path} can't be driven: {what}")

    def _forget(self, path: Path) -> bool:
        self._ask_at_s = {asked: at_s for asked, at_s in self._ask_at_s.items() if asked[0] != path}
        self._refused = {refused: why for refused, why in self._refused.items() if refused[0] != path}
        return self._members.pop(path, None) is not None

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            logger.warning("tenuto: %s", line)


def _move(member: _Member, hashes: Sequence[BlockHash], volume: str) -> Moved:
    n_piece = max(1, _PIECE_BYTES // max(1, member.info.extent_bytes))
    pieces = [member.agent.move(hashes[at : at + n_piece], volume) for at in range(0, len(hashes), n_piece)]
    return Moved(
        sum(moved.n_moved for moved in pieces),
        tuple(block for moved in pieces for block in moved.absent),
        tuple(block for moved in pieces for block in moved.refused),
    )


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
