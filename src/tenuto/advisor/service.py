"""The advisor at work: hears events, asks the core, and has its orders carried out by a thread beside."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

import msgspec

from tenuto.advisor.agents import AgentInfo, Agents
from tenuto.advisor.core import Advisor, Task, WorkerName
from tenuto.advisor.fleet import Fleet, common_volumes
from tenuto.advisor.orders import Drop
from tenuto.advisor.report import report_index, report_prefixes, report_volumes
from tenuto.advisor.settings import AdvisorSettings, parse_volumes
from tenuto.errors import ConfigError
from tenuto.events import Message

logger = logging.getLogger(__name__)

_REFRESH_S = 5.0
_MOST_MESSAGES = 256  # taken in between two plans
_MOST_ORDERS = 1000


class Heard(Protocol):
    """Where messages come from: a `Subscription`."""

    def next(self, timeout_s: float) -> Message | None:
        """The next message; None when there is none in time."""
        ...


class Service:
    """`run` until `stop`. Reports may be asked from any thread.

    What is away costs nothing: without events nothing is planned, without agents the index is kept and nothing moved.
    Raises `ConfigError` for a log file that can't be written, and for rules that are none.
    """

    def __init__(
        self, settings: AdvisorSettings, agents: Agents, events: Heard, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._events = events
        self._clock = clock
        self._advisor = Advisor(settings)
        root = Path(settings.disk.path) if settings.disk.path else None
        self._fleet = Fleet(agents, root, parse_volumes(settings.volumes))
        self._log = _opened(settings.log_file)
        self._lock = threading.Lock()  # of the advisor and what is below
        self._workers: dict[WorkerName, list[AgentInfo]] = {}
        self._orders: deque[dict[str, Any]] = deque(maxlen=_MOST_ORDERS)
        self._n_waiting: dict[WorkerName, int] = {}
        self._tasks: queue.Queue[tuple[WorkerName, Task]] = queue.Queue()
        self._stopped = threading.Event()
        self._plan_at = 0.0
        self._began_s = clock()

    def run(self) -> None:
        """Work until `stop` is called."""
        carrier = threading.Thread(target=self._carry, name="tenuto-advisor", daemon=True)
        carrier.start()
        while not self._stopped.is_set():
            self.turn()
        carrier.join(timeout=_REFRESH_S)
        if self._log is not None:
            self._log.close()

    def stop(self) -> None:
        """Have `run` end; an order that is under way is not waited for long."""
        self._stopped.set()

    def turn(self) -> None:
        """Take in what there is, and plan when it is time. What `run` does again and again."""
        message = self._events.next(self._settings.tick_s)
        for _ in range(_MOST_MESSAGES):
            if message is None:
                break
            with self._lock:
                self._advisor.take(message)
            message = self._events.next(0.0)
        if message is not None:
            with self._lock:
                self._advisor.take(message)
        if self._clock() >= self._plan_at:
            self._plan_at = self._clock() + self._settings.tick_s
            self._plan()

    # -- reports ------------------------------------------------------------------------------------

    def index(self) -> dict[str, Any]:
        """The blocks of each engine, by volume."""
        with self._lock:
            return report_index(self._advisor, self._clock())

    def volumes(self) -> dict[str, Any]:
        """The volumes of each engine as its agents describe them."""
        with self._lock:
            return report_volumes(self._workers)

    def orders(self) -> dict[str, Any]:
        """The last orders, the newest first."""
        with self._lock:
            return {"orders": list(self._orders)[::-1], "n_waiting": sum(self._n_waiting.values())}

    def prefixes(self, n_top: int) -> dict[str, Any]:
        """The hottest chain groups."""
        with self._lock:
            return report_prefixes(self._advisor, n_top, self._clock())

    def health(self) -> dict[str, Any]:
        """Whether it hears and is heard."""
        with self._lock:
            return {
                "is_dry_run": self._settings.dry_run,
                "up_s": round(self._clock() - self._began_s, 1),
                "n_engines_heard": len(self._advisor.workers),
                "n_agents": sum(map(len, self._workers.values())),
            }

    # -- inside -------------------------------------------------------------------------------------

    def _plan(self) -> None:
        with self._lock:
            for name, infos in self._workers.items():
                if self._n_waiting.get(name):
                    continue  # its last orders are under way
                block_bytes = sum(info.extent_bytes for info in infos)
                for task in self._advisor.plan(name, common_volumes(infos), block_bytes, self._clock()):
                    if self._settings.dry_run:
                        self._note(name, task, {"is_dry_run": True})
                    else:
                        self._n_waiting[name] = self._n_waiting.get(name, 0) + 1
                        self._tasks.put((name, task))

    def _carry(self) -> None:
        """The thread beside: agents may take their time."""
        refresh_at = 0.0
        while not self._stopped.is_set():
            if time.monotonic() >= refresh_at:
                self._refresh()
                refresh_at = time.monotonic() + _REFRESH_S
            try:
                name, task = self._tasks.get(timeout=self._settings.tick_s)
            except queue.Empty:
                continue
            said, moved = self._fleet.carry_out(name, task)
            if self._tasks.empty():  # what is planned next goes by how volumes are now
                self._refresh()
            with self._lock:
                self._n_waiting[name] -= 1
                self._advisor.done(name, task, moved, self._clock())
                self._note(name, task, said)

    def _refresh(self) -> None:
        self._fleet.refresh()
        with self._lock:
            self._workers = self._fleet.workers()

    def _note(self, name: WorkerName, task: Task, said: dict[str, Any]) -> None:
        order = task.order
        note = {
            "time_s": round(self._clock(), 3), "worker": name[0], "dp_rank": name[1], "rule": task.rule,
            "order": type(order).__name__.lower(), "volume": "" if isinstance(order, Drop) else order.volume,
            "n_blocks": len(task.hashes), **said,
        }  # fmt: skip
        self._orders.append(note)
        line = msgspec.json.encode(note).decode()
        logger.info("tenuto: %s", line)
        if self._log is not None:
            with suppress(OSError):  # a full disk costs lines alone
                print(line, file=self._log, flush=True)


def _opened(log_file: str) -> TextIO | None:
    try:
        return Path(log_file).open("a", encoding="utf-8") if log_file else None
    except OSError as error:
        raise ConfigError(f"log_file: can't write {log_file} ({error.strerror}); give another file") from None
