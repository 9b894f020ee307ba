"""The advisor at work: hears events, asks the core, and has its orders carried out by a thread beside."""

from __future__ import annotations

import queue
import socket
import threading
from pathlib import Path
from typing import Any, Protocol

from tenuto.advisor.agents import AgentInfo, Agents
from tenuto.advisor.clocks import OwnClock
from tenuto.advisor.core import Advisor, Task, WorkerName
from tenuto.advisor.fleet import Fleet, common_volumes
from tenuto.advisor.journal import Journal
from tenuto.advisor.orders import Drop
from tenuto.advisor.report import report_index, report_prefixes, report_volumes
from tenuto.advisor.settings import AdvisorSettings, parse_volumes
from tenuto.advisor.silence import Silence
from tenuto.errors import InvariantError
from tenuto.events import Message

_REFRESH_S = 5.0
_MOST_MESSAGES = 256  # taken in between two plans


class Heard(Protocol):
    """Where messages come from: a `Subscription`."""

    def next(self, timeout_s: float) -> Message | None:
        """The next message; None when there is none in time."""
        ...


class Service:
    """`run` until `stop`. Reports may be asked from any thread.

    What is away costs nothing: without events nothing is planned, without agents the index is kept and nothing moved.
    Raises `ConfigError` for a log file that can't be written, and for rules that are none. Ages and pauses go by a
    clock that nobody sets.
    """

    def __init__(self, settings: AdvisorSettings, agents: Agents, events: Heard, clock: OwnClock | None = None) -> None:
        self._settings = settings
        self._events = events
        self._clock = clock or OwnClock()
        self._began_s = self._plan_at_s = self._clock.now_s()
        self._advisor = Advisor(settings, socket.gethostname())
        root = Path(settings.disk.path) if settings.disk.path else None
        self._fleet = Fleet(agents, root, parse_volumes(settings.volumes), is_dry_run=settings.dry_run)
        self._journal = Journal(settings.log_file, is_dry_run=settings.dry_run, now_s=self._began_s)
        self._silence = Silence(settings.events.url, self._began_s)
        self._lock = threading.Lock()  # of the advisor and what is below
        self._workers: dict[WorkerName, list[AgentInfo]] = {}
        self._names: set[WorkerName] = set()
        self._refused: list[dict[str, str]] = []
        self._under_way: tuple[WorkerName, Task, float] | None = None
        self._n_waiting: dict[WorkerName, int] = {}
        self._tasks: queue.Queue[tuple[WorkerName, Task]] = queue.Queue()
        self._stopped = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Work until `stop` is called. Raises `InvariantError` when the thread beside has died."""
        carrier = threading.Thread(target=self._carry, name="tenuto-advisor", daemon=True)
        carrier.start()
        while not self._stopped.is_set():
            self.turn()
        carrier.join(timeout=_REFRESH_S)
        self._journal.close()
        if self._failure is not None:
            what = f"{type(self._failure).__name__}: {self._failure}"
            raise InvariantError(f"the thread that drives agents has ended ({what}); start it again")

    def stop(self) -> None:
        """Have `run` end; an order that is under way is not waited for long."""
        self._stopped.set()

    def turn(self) -> None:
        """Take in what there is, and plan when it is time. What `run` does again and again."""
        message = self._events.next(self._settings.tick_s)
        for n_taken in range(_MOST_MESSAGES):
            if message is None:
                break
            with self._lock:
                self._advisor.take(self._clock.translated(message))
                self._silence.heard(message.source.place, self._clock.now_s())
            message = self._events.next(0.0) if n_taken + 1 < _MOST_MESSAGES else None
        now_s = self._clock.now_s()
        if now_s >= self._plan_at_s:
            self._plan_at_s = now_s + self._settings.tick_s
            self._plan()

    # -- reports ------------------------------------------------------------------------------------

    def index(self) -> dict[str, Any]:
        """The blocks of each engine, by volume."""
        with self._lock:
            return report_index(self._advisor, self._clock.now_s())

    def volumes(self) -> dict[str, Any]:
        """The volumes of each engine as its agents describe them."""
        with self._lock:
            return report_volumes(self._workers)

    def orders(self) -> dict[str, Any]:
        """The last orders, the newest first."""
        with self._lock:
            return {"orders": list(self._journal.orders)[::-1], "n_waiting": sum(self._n_waiting.values())}

    def prefixes(self, n_top: int) -> dict[str, Any]:
        """The hottest chain groups."""
        with self._lock:
            return report_prefixes(self._advisor, n_top, self._clock.now_s())

    def health(self) -> dict[str, Any]:
        """Whether it hears and is heard, and what is not as it should be."""
        with self._lock:
            now_s = self._clock.now_s()
            return {
                "is_dry_run": self._settings.dry_run,
                "up_s": round(now_s - self._began_s, 1),
                "n_engines_heard": len(self._advisor.workers),
                "n_agents": sum(map(len, self._workers.values())),
                "n_waiting": sum(self._n_waiting.values()),
                "under_way": [] if self._under_way is None else [_told(*self._under_way, now_s)],
                "refused_volumes": self._refused,
                "rules_left_out": dict(self._advisor.left_out),
            }

    # -- inside -------------------------------------------------------------------------------------

    def _plan(self) -> None:
        now_s = self._clock.now_s()
        with self._lock:
            self._silence.look(self._workers, now_s)
            self._journal.summarize(now_s)
            for place in self._silence.gone(self._names, now_s):
                self._advisor.forget(place)
            for name, infos in self._workers.items():
                if self._n_waiting.get(name):
                    continue  # its last orders are under way
                block_bytes = sum(info.extent_bytes for info in infos)
                for task in self._advisor.plan(name, common_volumes(infos), block_bytes, now_s):
                    if self._settings.dry_run:
                        self._note(name, task, {"is_dry_run": True})
                    else:
                        self._n_waiting[name] = self._n_waiting.get(name, 0) + 1
                        self._tasks.put((name, task))

    def _carry(self) -> None:
        try:
            self._carry_on()
        except BaseException as error:  # noqa: BLE001 - border of a thread: `run` tells it
            self._failure = error
            self._stopped.set()

    def _carry_on(self) -> None:
        """The thread beside: agents may take their time."""
        refresh_at_s = self._clock.now_s()
        while not self._stopped.is_set():
            if self._clock.now_s() >= refresh_at_s:
                self._refresh()
                refresh_at_s = self._clock.now_s() + _REFRESH_S
            try:
                name, task = self._tasks.get(timeout=self._settings.tick_s)
            except queue.Empty:
                continue
            with self._lock:
                self._under_way = (name, task, self._clock.now_s())
            said, moved = self._fleet.carry_out(name, task)
            if self._tasks.empty():  # what is planned next goes by how volumes are now
                self._refresh()
            with self._lock:
                self._under_way = None
                self._n_waiting[name] -= 1
                self._advisor.done(name, task, moved, self._clock.now_s())
                self._note(name, task, said)

    def _refresh(self) -> None:
        self._fleet.refresh()
        with self._lock:
            self._workers, self._names = self._fleet.workers(), self._fleet.names()
            self._refused = self._fleet.refused()

    def _note(self, name: WorkerName, task: Task, said: dict[str, Any]) -> None:
        self._journal.note({"time_s": round(self._clock.wall_s(), 3)} | _as_data(name, task) | said, task)


def _as_data(name: WorkerName, task: Task) -> dict[str, Any]:
    order = task.order
    return {
        "worker": name[0], "dp_rank": name[1], "rule": task.rule, "order": type(order).__name__.lower(),
        "volume": "" if isinstance(order, Drop) else order.volume, "n_blocks": len(task.hashes),
    }  # fmt: skip


def _told(name: WorkerName, task: Task, began_s: float, now_s: float) -> dict[str, Any]:
    return _as_data(name, task) | {"age_s": round(now_s - began_s, 1)}
