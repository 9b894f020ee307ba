"""Publishes what a manager tells: numbered, in batches, from a thread of its own."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tenuto import metrics
from tenuto.events.answers import Answers, snapshot_parts
from tenuto.events.batch import STREAM_BYTES, Batch, Source, encode
from tenuto.events.grouping import BlockShape, Lost, group_facts, n_events_of
from tenuto.events.history import History
from tenuto.events.ways.way import Question, Sender
from tenuto.metrics import series
from tenuto.pools.facts import Fact, Stored

logger = logging.getLogger(__name__)

_SEND_BATCHES = 64
_SEND_BYTES = 1 << 20
_RETRY_S = 0.05
_EVENTS_AT_ONCE = 1024
_LEAST_LINGER_S = 0.002
_MOST_LINGER_S = 0.05
_LEAST_BEAT_S = 0.1
"""The first heartbeat behind a batch; each next one comes after twice that, up to `idle_s`."""


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """Bounds. Waiting events are about 200 bytes each."""

    idle_s: float = 10.0
    """A heartbeat is sent when nothing was for so long; sooner behind a batch."""
    batch_events: int = 1024
    most_waiting: int = 1 << 18
    """Events that are told and not yet encoded; what is more is lost, and readers take a snapshot."""
    history_bytes: int = 64 << 20
    """Encoded batches that wait for a broker, or are kept for readers that have a gap."""


class Publisher:
    """`publish` is for the engine's thread: it never blocks, and never raises for what is outside of this process.

    `snapshot` gives all blocks that can be matched, in pieces, on the publisher's thread, while they come and go: what
    it reads must have changed before the fact of it is published. `way` is opened here, and its `ConfigError` raised.
    """

    def __init__(
        self,
        way: Sender,
        source: Source,
        shape: BlockShape,
        snapshot: Callable[[], Iterable[Stored]],
        settings: PublisherSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream = secrets.token_bytes(STREAM_BYTES)
        self._way = way
        self._source = source
        self._shape = shape
        self._snapshot = snapshot
        self._settings = settings or PublisherSettings()
        self._clock = clock
        # Between the two threads there is no lock: a deque, and numbers that one of them alone changes.
        self._queue: deque[tuple[float, Sequence[Fact] | Lost | Source, int]] = deque()
        self._n_told = 0  # the engine's thread
        self._n_taken = 0  # ours
        self._lost = Lost(is_taken=True)
        self._is_lost_last = False  # the engine's thread: nothing was told behind it
        self._deadline: float | None = None  # closing
        self._is_over = False
        self._history = History(self._settings.history_bytes)
        self._answers = Answers(way, clock)
        self._linger_s = _LEAST_LINGER_S
        self._beat_s = _LEAST_BEAT_S
        self._beat_at = clock() + _LEAST_BEAT_S
        self._counts = dict.fromkeys((metrics.EVENT_BATCHES, metrics.EVENT_SNAPSHOTS, metrics.EVENT_REPLAYS), 0)
        self._n_lost = 0
        self._unsent: tuple[int, float] | None = None  # number and time of what waits for the way
        self._thread = threading.Thread(target=self._run, name="tenuto-events", daemon=True)
        way.open(self.stream)

    def start(self) -> None:
        """Begin to send, on a thread of its own."""
        self._thread.start()

    # -- the engine's thread ------------------------------------------------------------------------

    def publish(self, facts: Sequence[Fact]) -> None:
        """Tell facts, in the order they came true; they belong to the publisher now."""
        n = 0
        for fact in facts:
            n += n_events_of(fact)
        n_waiting = self._n_told - self._n_taken
        if (n_waiting and n_waiting + n > self._settings.most_waiting) or self._is_over:
            self._lose(n)
            return
        self._n_told += n
        self._is_lost_last = False
        self._queue.append((self._clock(), facts, n))

    def rename(self, namespace: bytes) -> None:
        """What is told from now on is of another namespace."""
        source = Source(self._source.node, self._source.worker, self._source.rank, namespace)
        self._queue.append((self._clock(), source, 0))

    def close(self, timeout_s: float = 5.0) -> None:
        """Send all that waits, within `timeout_s`, and end."""
        self._deadline = self._clock() + timeout_s
        self._way.wake()
        self._thread.join(timeout_s + 1.0)
        if self._thread.is_alive():
            logger.warning("tenuto: the event publisher did not end in time: its last events are not sent")

    def _lose(self, n: int) -> None:
        self._n_lost += n
        if self._is_over:
            return
        if self._lost.is_taken or not self._is_lost_last:  # what stands behind a mark was told before what is lost now
            self._lost, self._is_lost_last = Lost(), True
            self._queue.append((self._clock(), self._lost, 0))
        self._lost.n_events += n

    # -- figures, from any thread -------------------------------------------------------------------

    @property
    def n_behind(self) -> int:
        """Events that are told and not sent."""
        unsent = self._unsent
        return self._n_told - self._n_taken + (self._history.end - unsent[0] if unsent else 0)

    def read(self) -> dict[str, float]:
        """By series, for `Recorder.watch`."""
        unsent = self._unsent
        since = unsent[1] if unsent else None
        if since is None:
            try:
                since = self._queue[0][0]
            except IndexError:
                since = None
        return {
            series(metrics.EVENTS): self._n_told,
            series(metrics.EVENTS_LOST): self._n_lost,
            series(metrics.EVENT_LAG): self.n_behind,
            series(metrics.EVENT_LAG_SECONDS): 0.0 if since is None else max(0.0, self._clock() - since),
        } | {series(metric): n for metric, n in self._counts.items()}

    # -- the publisher's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._deadline is None or (
                self._clock() < self._deadline and (self._queue or self._history.oldest_unsent)
            ):
                self.turn()
        finally:
            self._is_over = True
            deadline = self._deadline or self._clock()
            self._way.close(max(0.0, deadline - self._clock()))

    def turn(self) -> None:
        """One round: what the thread does again and again. For tests, which have none."""
        timeout_s = self._timeout_s()
        for question in self._way.wait(timeout_s):
            self._take_question(question)
        self._encode_waiting()
        self._send()
        self._answers.go_on()

    def _timeout_s(self) -> float:
        """How long to gather. `publish` wakes nobody, since that would cost the engine's thread its interpreter."""
        if self._deadline is not None:
            return _RETRY_S if self._history.oldest_unsent and not self._queue else 0.0
        if self._answers:
            return self._answers.pause_s
        if self._history.oldest_unsent:
            return _RETRY_S
        return min(self._linger_s, max(0.0, self._beat_at - self._clock()))

    def _encode_waiting(self) -> None:
        """What was told by now, into batches; a little later next time, when it was little."""
        n_before = self._history.end
        facts: list[Fact | Lost] = []
        told_at, n = 0.0, 0
        for _ in range(len(self._queue)):
            at, what, n_events = self._queue.popleft()
            told_at = told_at if facts else at
            if isinstance(what, Source):
                self._encode(facts, told_at)
                facts, self._source = [], what
                continue
            if isinstance(what, Lost):
                what.is_taken = True
                facts.append(what)
            else:
                facts += what
            n += n_events
        self._encode(facts, told_at)
        self._n_taken += n
        n_new = self._history.end - n_before
        if n_new >= self._settings.batch_events:
            self._linger_s = max(_LEAST_LINGER_S, self._linger_s / 2)
        else:
            self._linger_s = min(_MOST_LINGER_S, self._linger_s * 1.5)

    def _encode(self, facts: Sequence[Fact | Lost], told_at: float) -> None:
        n_at_once = 0
        for groups, n_events in group_facts(facts, self._shape, self._settings.batch_events):
            n_at_once += n_events
            if n_at_once > _EVENTS_AT_ONCE:
                n_at_once = 0
                time.sleep(0)  # the engine may have its interpreter back
            batch = Batch(self.stream, self._history.end, time.time_ns() // 1_000_000, self._source, groups)
            self._history.add(encode(batch), n_events, told_at)

    def _send(self) -> None:
        while entries := self._history.unsent(_SEND_BATCHES, _SEND_BYTES):
            n = self._way.send([(entry.first, entry.payload) for entry in entries])
            self._history.mark_sent(n)
            self._counts[metrics.EVENT_BATCHES] += n
            if n:
                self._beat_s = min(_LEAST_BEAT_S, self._settings.idle_s)
                self._beat_at = self._clock() + self._beat_s
            if n < len(entries):
                break
        oldest = self._history.oldest_unsent
        self._unsent = (oldest.first, oldest.told_at) if oldest else None
        if oldest is None and self._clock() >= self._beat_at:
            self._beat()

    def _beat(self) -> None:
        """A heartbeat: which number comes next."""
        batch = Batch(self.stream, self._history.end, time.time_ns() // 1_000_000, self._source, ())
        self._way.send([(batch.first, encode(batch))])
        self._beat_s = min(2 * self._beat_s, self._settings.idle_s)
        self._beat_at = self._clock() + self._beat_s

    def _take_question(self, question: Question) -> None:
        first, history = question.first, self._history
        if first is None:
            if history.oldest_unsent is None:
                self._beat()
        elif first and (entries := history.since(first)) is not None:
            self._counts[metrics.EVENT_REPLAYS] += 1
            self._answers.begin(question.asker, ((entry.first, entry.payload) for entry in entries))
        else:
            self._counts[metrics.EVENT_SNAPSHOTS] += 1
            most = self._settings.batch_events
            parts = snapshot_parts(self.stream, history.end - 1, self._source, self._snapshot(), self._shape, most)
            self._answers.begin(question.asker, parts)
