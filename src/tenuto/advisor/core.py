"""Events in, orders out: all that the advisor decides. No sockets, threads or clocks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tenuto.advisor.accepting import why_refused
from tenuto.advisor.agents import Moved, VolumeInfo
from tenuto.advisor.index import WorkerIndex
from tenuto.advisor.limits import Allowance
from tenuto.advisor.orders import Compact, Drop, Move, Order
from tenuto.advisor.placement import View, VolumeState
from tenuto.advisor.rules import Rule, make_rules
from tenuto.advisor.settings import AdvisorSettings, parse_volumes
from tenuto.config import parse_size
from tenuto.events import Message
from tenuto.tokens import BlockHash

WorkerName = tuple[str, int]
"""Worker and data-parallel rank, as agents name them."""
Place = tuple[str, str, int]
"""Node, worker and data-parallel rank, as events' sources name them."""

logger = logging.getLogger(__name__)

_EVENTS_S = 2.0  # what an order has done is told within that time
_HELD_S = 60.0  # an order that nobody has answered is forgotten, and may be given again


@dataclass(frozen=True, slots=True)
class Task:
    """An order with the names of its blocks, for agents. `rule`: who gave it; `is_up`: to a faster volume."""

    rule: str
    order: Order
    hashes: list[BlockHash] = field(default_factory=list[BlockHash])
    is_up: bool = False


@dataclass(slots=True)
class _Worker:
    index: WorkerIndex
    rules: dict[str, Rule]
    allowances: dict[str, Allowance]
    of_all: Allowance


class Advisor:
    """Takes messages of any number of engines. For each it keeps an index, rules and allowances of its own.

    The caller asks `plan` now and then, carries out the tasks, in order, and tells each one's end to `done`: until
    then, or for a minute, no other order is given for the same blocks. Raises `ConfigError` for rules that are none.
    """

    def __init__(self, settings: AdvisorSettings, node: str = "") -> None:
        self._node = node
        self._settings = settings
        self._speeds = {volume.name: speed for speed, volume in enumerate(parse_volumes(settings.volumes))}
        self._workers: dict[Place, _Worker] = {}
        self._said: set[WorkerName] = set()
        self.left_out: dict[str, str] = {}
        """Rules that are not asked any more, and why."""
        make_rules(settings)

    @property
    def workers(self) -> dict[Place, WorkerIndex]:
        """The index of each engine that was heard."""
        return {place: worker.index for place, worker in self._workers.items()}

    def place_of(self, name: WorkerName) -> Place | None:
        """Which of those heard an agent's engine is: agents tell no node. None: not heard, or it can't be told.

        Of several with one name it is the one on the node that was given, where agents are.
        """
        found = [place for place in self._workers if place[1:] == name]
        if len(found) > 1:
            if name not in self._said:
                self._said.add(name)
                nodes = ", ".join(sorted(place[0] for place in found))
                logger.warning("tenuto: worker %s, rank %d, is on several nodes: %s; give each a name", *name, nodes)
            found = [place for place in found if place[0] == self._node]
        return found[0] if found else None

    def take(self, message: Message) -> None:
        """Take in a message, as a subscription yields it."""
        place = message.source.place
        worker = self._workers.get(place)
        if worker is None:
            worker = self._workers[place] = self._new_worker()
        worker.index.take(message)

    def plan(self, name: WorkerName, volumes: Sequence[VolumeInfo], block_bytes: int, now_s: float) -> list[Task]:
        """What to do now. `volumes`: as the worker's agent describes them; `block_bytes`: of a block on all ranks."""
        worker = self._worker(name)
        if worker is None:
            return []
        index = worker.index
        index.tell_time(now_s)
        states = {state.name: state for state in self._states(index, volumes)}
        view = View(index, tuple(states.values()), index.take_touched(), max(1, block_bytes), now_s)
        tasks: list[Task] = []
        for rule_name, rule in worker.rules.items():
            if rule_name in self.left_out:
                continue
            for order in self._asked(rule_name, rule, view):
                task = self._granted(worker, rule_name, order, view, states)
                if task is not None:
                    tasks.append(task)
        return tasks

    def done(self, name: WorkerName, task: Task, moved: Moved | None, now_s: float) -> None:
        """A task has ended. Where blocks are now is told by events, which are waited for a moment.

        Those that were `refused` wait for the next plan.
        """
        worker = self._worker(name)
        if worker is None:
            return
        table = worker.index.table
        rows = np.asarray(table.known(task.hashes), np.int64)
        there = table.volume_number(task.order.volume) if isinstance(task.order, Move) else -1
        table.held_until_s[rows] = np.where(table.volume[rows] == there, 0.0, now_s + _EVENTS_S)
        if moved is not None and moved.refused:
            worker.index.touch_again(np.asarray(table.known(moved.refused), np.int64))

    def forget(self, place: Place) -> None:
        """This engine is gone."""
        self._workers.pop(place, None)

    def _worker(self, name: WorkerName) -> _Worker | None:
        place = self.place_of(name)
        return None if place is None else self._workers[place]

    def _asked(self, name: str, rule: Rule, view: View) -> list[Order]:
        """What a rule orders. One that fails or orders nonsense is not asked again, for any engine."""
        orders: list[Order] = []
        try:
            for order in rule.plan(view):
                if why := why_refused(order, view, len(orders)):
                    break
                orders.append(order)
            else:
                return orders
        except Exception as error:  # noqa: BLE001 - border of others' code
            why = f"it failed: {type(error).__name__}: {error}"
        self.left_out[name] = why
        logger.warning("tenuto: rule %s is left out from now on: %s", name, why)
        return []

    def _new_worker(self) -> _Worker:
        rates = self._settings.rates
        rules = make_rules(self._settings)
        rule_bytes = parse_size(rates.rule_bytes_per_s, "rates.rule_bytes_per_s")
        return _Worker(
            WorkerIndex(), rules,
            {rule: Allowance(rates.rule_blocks_per_s, rule_bytes) for rule in rules},
            Allowance(rates.blocks_per_s, parse_size(rates.bytes_per_s, "rates.bytes_per_s")),
        )  # fmt: skip

    def _states(self, index: WorkerIndex, volumes: Sequence[VolumeInfo]) -> list[VolumeState]:
        """The volumes, the fastest first; what they hold is known better from events than from a description."""
        counts = index.table.counts()
        slowest = len(self._speeds)
        ordered = sorted(volumes, key=lambda volume: self._speeds.get(volume.name, slowest))
        return [
            VolumeState(
                volume.name, max(0, volume.n_places), volume.n_places - counts.get(volume.name, 0),
                counts.get(volume.name, 0), volume.file_bytes, volume.is_draining,
            )
            for volume in {volume.name: volume for volume in ordered}.values()
        ]  # fmt: skip

    def _granted(
        self, worker: _Worker, rule: str, order: Order, view: View, states: dict[str, VolumeState]
    ) -> Task | None:
        """As much of an order as the rates and the room allow; what is left waits for the next plan."""
        allowances = (worker.allowances[rule], worker.of_all)
        n = min(allowance.n_allowed(view.block_bytes, view.now_s) for allowance in allowances)
        if isinstance(order, Compact):
            task = Task(rule, order) if n > 0 else None
            n = order.n_blocks
        else:
            rows = view.free(order.rows)  # a rule before may have chosen the same
            if isinstance(order, Move):
                n = min(n, max(0, states[order.volume].room))
                worker.index.touch_again(rows[n:] if rule != "demote" else rows[:0])
            order = replace(order, rows=rows[:n])
            n = len(order.rows)
            task = Task(rule, order, view.table.names(order.rows), self._is_up(order, view)) if n else None
        if task is None:
            return None
        for allowance in allowances:
            allowance.spend(n, view.block_bytes)
        self._book(order, view, states)
        return task

    def _is_up(self, order: Move | Drop, view: View) -> bool:
        if not isinstance(order, Move):
            return False
        speeds = [self._speeds.get(name, len(self._speeds)) for name in view.table.volumes]
        wanted = self._speeds.get(order.volume, len(self._speeds))
        return speeds[int(view.table.volume[order.rows[0]])] > wanted

    @staticmethod
    def _book(order: Order, view: View, states: dict[str, VolumeState]) -> None:
        """Blocks of an order are held, and their room is counted."""
        if isinstance(order, Compact):
            return
        table = view.table
        table.held_until_s[order.rows] = view.now_s + _HELD_S
        if isinstance(order, Drop):
            return
        states[order.volume].room -= len(order.rows)
        left = np.bincount(table.volume[order.rows], minlength=len(table.volumes))
        for name, n in zip(table.volumes, left.tolist(), strict=True):
            if n and name in states:
                states[name].room += n
