"""Traffic through an engine that is stepped here: each request's tokens are timed as they come out."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tenuto.cli.bench.engines.messages import Window
from tenuto.cli.bench.engines.traffic import Session, Traffic, plan_sessions

_IDLE_S = 0.002


@dataclass(frozen=True, slots=True)
class Output:
    """What one step gave one request."""

    request: str
    tokens: Sequence[int]
    is_finished: bool
    reused_tokens: int


class Stepped(Protocol):
    """An engine that works when it is told to."""

    def submit(self, request: str, prompt: Sequence[int], n_answer: int) -> None:
        """Take in a request."""
        ...

    def step(self) -> Iterable[Output]:
        """One step of all requests in it."""
        ...


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds, and waiting for some."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True)
class _Running:
    """One request: whose it is, since when it waits, when its last token came."""

    session: int
    turn: int
    due_s: float
    last_s: float | None = None
    answer: list[int] = field(default_factory=list[int])


def run_traffic(engine: Stepped, traffic: Traffic, clock: Clock | None = None) -> Window:
    """Every request of the traffic, to its end. An open one's time to first token counts from when it was due."""
    return _Pump(engine, traffic, clock or Clock()).run()


class _Pump:
    def __init__(self, engine: Stepped, traffic: Traffic, clock: Clock) -> None:
        self._engine, self._traffic, self._clock = engine, traffic, clock
        self._sessions: list[Session] = plan_sessions(traffic)
        self._history: list[list[int]] = [[] for _ in self._sessions]
        self._running: dict[str, _Running] = {}
        self._due: list[tuple[float, int, int]] = []
        """Open traffic: (when, session, turn), a heap."""
        self._queue: deque[tuple[int, int]] = deque()
        """Closed traffic: (session, turn) in the order of their turns."""
        self._n_done = [0] * len(self._sessions)
        self._ttft_s: list[float] = []
        self._itl_s: list[float] = []
        self._counts = {"prompt": 0, "answer": 0, "reused": 0}

    def run(self) -> Window:
        began = self._clock.now()
        if self._traffic.rate_per_s:
            self._due = [(began + session.start_s, index, 0) for index, session in enumerate(self._sessions)]
            heapq.heapify(self._due)
        else:
            turns = range(self._traffic.n_turns)
            self._queue.extend((index, turn) for turn in turns for index in range(len(self._sessions)))
        while self._running or self._due or self._queue:
            self._admit()
            if self._running:
                outputs = list(self._engine.step())
                now = self._clock.now()
                for output in outputs:
                    self._take(output, now)
            elif self._due:
                self._clock.sleep(max(0.0, min(_IDLE_S, self._due[0][0] - self._clock.now())))
        return Window(
            self._ttft_s, self._itl_s, self._clock.now() - began,
            self._counts["prompt"], self._counts["answer"], self._counts["reused"],
        )  # fmt: skip

    def _admit(self) -> None:
        now = self._clock.now()
        while self._due and self._due[0][0] <= now:
            due_s, session, turn = heapq.heappop(self._due)
            self._submit(session, turn, due_s)
        while self._queue and len(self._running) < self._traffic.n_clients:
            session, turn = self._queue[0]
            if self._n_done[session] < turn:
                return  # its answer before is still being made
            self._queue.popleft()
            self._submit(session, turn, now)

    def _submit(self, session: int, turn: int, due_s: float) -> None:
        asked = self._sessions[session].turns[turn]
        self._history[session] += asked.tokens
        prompt = list(self._history[session])
        self._counts["prompt"] += len(prompt)
        request = f"{self._traffic.seed}-{session}-{turn}"
        self._running[request] = _Running(session, turn, due_s)
        self._engine.submit(request, prompt, asked.n_answer)

    def _take(self, output: Output, now: float) -> None:
        running = self._running[output.request]
        if output.tokens:
            if running.last_s is None:
                self._ttft_s.append(now - running.due_s)
                self._counts["reused"] += output.reused_tokens
            else:
                self._itl_s += [(now - running.last_s) / len(output.tokens)] * len(output.tokens)
            running.last_s = now
            running.answer += output.tokens
        if output.is_finished:
            self._end(self._running.pop(output.request), now)

    def _end(self, ended: _Running, now: float) -> None:
        self._counts["answer"] += len(ended.answer)
        self._history[ended.session] += ended.answer
        self._n_done[ended.session] += 1
        following = ended.turn + 1
        if self._traffic.rate_per_s and following < self._traffic.n_turns:
            pause_s = self._sessions[ended.session].turns[following].pause_s
            heapq.heappush(self._due, (now + pause_s, ended.session, following))
