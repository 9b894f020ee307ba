"""Publishes to routers: numbered messages of vLLM's events, from a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tenuto import metrics
from tenuto.events.answers import Answers
from tenuto.events.grouping import n_events_of
from tenuto.events.history import History
from tenuto.events.routers.enginestream import EngineStream
from tenuto.events.ways.way import Question, Sender
from tenuto.events.wire.schemas import Schema
from tenuto.events.wire.vllm import BlockStored, EngineEvent, SnapshotPart, encode_batch
from tenuto.metrics import series
from tenuto.pools.facts import Fact, Stored
from tenuto.tokens import HashChain

logger = logging.getLogger(__name__)

_FIRST = 0  # vLLM counts messages from here
_SEND_MESSAGES = 64
_SEND_BYTES = 4 << 20
_RETRY_S = 0.05
_LEAST_LINGER_S = 0.002
_MOST_LINGER_S = 0.05
_PIECE = 256  # items of the queue between two looks at the readers
_BREATH = 64  # blocks, behind which the engine's thread may have its interpreter back


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Bounds."""

    idle_s: float = 10.0
    """An empty message is sent when nothing was for so long: readers see by its number what they have missed."""
    message_blocks: int = 1024
    most_waiting: int = 1 << 16
    """Blocks that are told and not yet taken in, with their tokens; what is more is made good from the pools."""
    history_bytes: int = 64 << 20
    """Messages that are kept for readers that have a gap; behind that they are given all there is."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A prompt of which so many blocks were found."""

    chain: HashChain
    n_blocks: int


class _Mark:
    """Stands in the queue where facts are missing."""


_Told = Sequence[Fact] | _Found | _Mark


class RouterPublisher:
    """`publish` and `learn` are for the engine's thread: they append, never block, and never raise for what is outside.

    `inventory` gives all blocks of our tiers that can be matched, in pieces, on the publisher's thread: what it reads
    must have changed before the fact of it is published. `way` is opened here, and its `ConfigError` raised; `engine`
    is closed by the publisher.
    """

    def __init__(
        self,
        way: Sender,
        schema: Schema,
        dp_rank: int,
        inventory: Callable[[], Iterable[Stored]],
        engine: EngineStream | None = None,
        settings: RouterSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._way = way
        self._schema = schema
        self._dp_rank = dp_rank
        self._inventory = inventory
        self._engine = engine
        self._settings = settings or RouterSettings()
        self._clock = clock
        # Between the two threads there is no lock: a deque, and numbers that one of them alone changes.
        self._queue: deque[tuple[_Told, int]] = deque()
        self._n_told = 0  # the engine's thread
        self._n_taken = 0  # ours
        self._n_lost = self._n_marks = 0  # the engine's thread
        self._n_marks_taken = 0  # ours
        self._is_mark_last = False
        self._deadline: float | None = None  # closing
        self._is_over = False
        self._history = History(self._settings.history_bytes, _FIRST)
        self._answers = Answers(way, clock)
        self._linger_s = _LEAST_LINGER_S
        self._beat_at = clock() + self._settings.idle_s
        self._n_sent = 0
        self._thread = threading.Thread(target=self._run, name="tenuto-router", daemon=True)
        way.open(b"")

    def start(self) -> None:
        """Begin to send, on a thread of its own."""
        self._thread.start()

    # -- the engine's thread ------------------------------------------------------------------------

    def publish(self, facts: Sequence[Fact]) -> None:
        """Tell facts, in the order they came true; nobody changes them from now on."""
        n = 0
        for fact in facts:
            n += n_events_of(fact)
        n_waiting = self._n_told - self._n_taken
        if (n_waiting and n_waiting + n > self._settings.most_waiting) or self._is_over:
            self._n_lost += n
            # Told behind a mark, it may be undone by what is lost now: that has a mark of its own.
            if not self._is_over and not (self._is_mark_last and self._n_marks > self._n_marks_taken):
                self._n_marks += 1
                self._is_mark_last = True
                self._queue.append((_Mark(), 0))
            return
        self._n_told += n
        self._is_mark_last = False
        self._queue.append((facts, n))

    def learn(self, chain: HashChain, n_blocks: int) -> None:
        """Tell that a prompt's first `n_blocks` blocks were found: some may have been stored without their tokens."""
        if self._n_told - self._n_taken < self._settings.most_waiting and not self._is_over:
            self._n_told += 1
            self._queue.append((_Found(chain, n_blocks), 1))

    def close(self, timeout_s: float = 5.0) -> None:
        """Tell that the worker has nothing any more, send all that waits within `timeout_s`, and end."""
        self._deadline = self._clock() + timeout_s
        self._way.wake()
        self._thread.join(timeout_s + 1.0)
        if self._thread.is_alive():
            logger.warning("tenuto: the publisher to routers did not end in time: its last events are not sent")

    # -- figures, from any thread -------------------------------------------------------------------

    def read(self) -> dict[str, float]:
        """By series, for `Recorder.watch`."""
        return {
            series(metrics.ROUTER_BATCHES): self._n_sent,
            series(metrics.ROUTER_LOST): self._n_lost,
            series(metrics.ROUTER_LAG): self._n_told - self._n_taken,
            series(metrics.ROUTER_BLOCKS): self._schema.n_told,
        }

    # -- the publisher's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._deadline is None or (self._clock() < self._deadline and self._queue):
                self.turn()
            self._schema.forget()
            self._tell_changes()
            while self._send() and self._clock() < self._deadline:
                time.sleep(_RETRY_S)
        finally:
            self._is_over = True
            if self._engine is not None:
                self._engine.close()
            self._way.close(max(0.0, (self._deadline or 0.0) - self._clock()))

    def turn(self) -> None:
        """One round: what the thread does again and again. For tests, which have none."""
        for question in self._way.wait(self._timeout_s()):
            self._take_question(question)
        n_before = self._history.end
        self._take_engine()
        self._take_told()
        self._tell_changes()
        is_busy = self._history.end - n_before > 1 or bool(self._queue)
        linger_s = self._linger_s / 2 if is_busy else self._linger_s * 1.5
        self._linger_s = min(max(linger_s, _LEAST_LINGER_S), _MOST_LINGER_S)
        if self._history.end == n_before and self._clock() >= self._beat_at:
            self._add([])
        self._send()
        self._answers.go_on()

    def _timeout_s(self) -> float:
        """How long to gather. `publish` wakes nobody, since that would cost the engine's thread its interpreter."""
        if self._deadline is not None or len(self._queue) >= _PIECE:
            return 0.0
        if self._answers:
            return self._answers.pause_s
        return self._linger_s

    def _take_engine(self) -> None:
        if self._engine is None:
            return
        for batch in self._engine.take():
            if batch is None:
                logger.warning("tenuto: events of the engine were missed: routers are told that its device has nothing")
                self._schema.forget_engine()
            else:
                self._schema.take_engine(batch)

    def _take_told(self) -> None:
        n_at_once = 0
        for _ in range(min(len(self._queue), _PIECE)):
            what, n = self._queue.popleft()
            n_at_once += n
            if n_at_once > _BREATH:
                n_at_once = 0
                time.sleep(0)
            match what:
                case _Mark():
                    self._n_marks_taken += 1  # before the look at the pools: what is lost behind it has another
                    if self._n_marks_taken == self._n_marks:
                        self._schema.catch_up(self._inventory())
                case _Found(chain, n_blocks):
                    self._schema.learn(chain, n_blocks)
                case facts:
                    self._schema.take(facts)
            self._n_taken += n

    def _tell_changes(self) -> None:
        """What has changed, as messages of at most so many blocks."""
        events: list[EngineEvent] = []
        n = 0
        for event in self._schema.changes():
            n_blocks = len(event.block_hashes) if isinstance(event, BlockStored) else 1
            if events and n + n_blocks > self._settings.message_blocks:
                self._add(events)
                events, n = [], 0
            events.append(event)
            n += n_blocks
        if events:
            self._add(events)

    def _add(self, events: Sequence[EngineEvent]) -> None:
        self._history.add(encode_batch(events, time.time(), self._dp_rank), 1, 0.0)
        self._send()  # before it has to make room
        time.sleep(0)
        self._beat_at = self._clock() + self._settings.idle_s

    def _send(self) -> bool:
        """Whether there is more to send."""
        while entries := self._history.unsent(_SEND_MESSAGES, _SEND_BYTES):
            n = self._way.send([(entry.first, entry.payload) for entry in entries])
            self._history.mark_sent(n)
            self._n_sent += n
            if n < len(entries):
                return True
        return False

    # -- readers that have missed something ---------------------------------------------------------

    def _take_question(self, question: Question) -> None:
        """They are given the messages from a number on; where these are gone, all there is, numbered up to the last."""
        first = question.first or 0
        entries = iter(()) if first >= self._history.end else self._history.since(first)
        if entries is None:
            self._answers.begin(question.asker, self._snapshot())
        else:
            self._answers.begin(question.asker, ((entry.first, entry.payload) for entry in entries))

    def _snapshot(self) -> Iterator[tuple[int, bytes]]:
        """What there is now, and the numbers of now; encoded when it is sent."""
        messages: list[list[SnapshotPart]] = [[]]
        n = 0
        for part in self._schema.snapshot():
            if messages[-1] and n + part.n_blocks > self._settings.message_blocks:
                messages.append([])
                n = 0
            messages[-1].append(part)
            n += part.n_blocks
        first = self._history.end - len(messages)
        numbered = list(enumerate(messages, first))
        time_s, rank = time.time(), self._dp_rank
        return (
            (max(_FIRST, number), encode_batch([part.make() for part in message], time_s, rank))
            for number, message in numbered
        )
