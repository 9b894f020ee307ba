"""A reader of event streams: batches without gaps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Self

from tenuto.errors import EventsError
from tenuto.events.batch import Batch, Message, Part, decode
from tenuto.events.following import Following, Standing
from tenuto.events.ways import Receiver, make_receiver, parse_address

logger = logging.getLogger(__name__)

_ANSWER_S = 5.0
_LEAST_RETRY_S = 0.05
_MOST_RETRY_S = 2.0
_BEGIN_S = 0.5
_LOOK_S = 0.05
"""Of one receiver, where there are several."""


class Subscription:
    """What publishers tell, in order and whole: each a `Batch`, or a `Part` of a snapshot where a gap can't be filled.

    Iterate over it; what it yields is for `Index.take`. It never ends by itself, and raises nothing for a publisher or
    a broker that is away. `next(timeout_s)` gives up in time. One thread at a time; use it with ``with``.
    """

    def __init__(self, receivers: list[Receiver], clock: Callable[[], float] = time.monotonic) -> None:
        self._receivers = receivers
        self._clock = clock
        self._following = Following()
        self._ready: Iterator[Message] = iter(())
        self._retries: dict[bytes | int, tuple[float, float]] = {}  # when to ask next, and how long to wait after it
        self._begun: set[int] = set()
        self._has_warned = False
        self.n_gaps = 0
        """Times that something was missed of a stream of which all was there before; a reader that begins has none."""
        self.n_snapshots = 0

    @property
    def n_answering(self) -> int:
        """Addresses at which a publisher, or a broker, has answered so far: it may be away again since."""
        return len(self._begun)

    def __iter__(self) -> Iterator[Message]:
        while True:
            message = self.next(3600.0)
            if message is not None:
                yield message

    def next(self, timeout_s: float) -> Message | None:
        """The next message; None when there is none within `timeout_s`. An answer that has begun is waited for."""
        until = self._clock() + timeout_s
        while True:
            for message in self._ready:
                return message
            left_s = until - self._clock()
            self._ready = self._some(max(0.0, left_s))
            for message in self._ready:
                return message
            if left_s <= 0:
                return None

    def close(self) -> None:
        """End."""
        for receiver in self._receivers:
            receiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _some(self, timeout_s: float) -> Iterator[Message]:
        """What there is at the first receiver that has something."""
        alone = len(self._receivers) == 1
        for number, receiver in enumerate(self._receivers):
            if number not in self._begun and self._may_ask(number):
                yield from self._begin(number, receiver)
            data = receiver.receive(timeout_s if alone and number in self._begun else min(timeout_s, _LOOK_S))
            if data is not None:
                yield from self._take(number, receiver, data)

    def _begin(self, number: int, receiver: Receiver) -> Iterator[Message]:
        """What is there before anything is told: the way may have it, or the publisher."""
        try:
            for data in receiver.ask(None, 1, _BEGIN_S):
                self._begun.add(number)
                yield from self._take(number, receiver, data, is_answer=True)
            self._begun.add(number)
        except TimeoutError:
            self._ask_later(number)

    def _take(self, number: int, receiver: Receiver, data: bytes, *, is_answer: bool = False) -> Iterator[Message]:
        message = self._decoded(data)
        if message is None:
            return
        if isinstance(message, Part):
            if self._following.took(message):
                self.n_snapshots += message.is_last
                yield message
            return
        standing, batch = self._following.place(message)
        if standing is Standing.NEXT:
            self._following.took(batch)
            yield batch
        if is_answer:
            return
        if standing is Standing.GAP or self._following.is_incomplete(batch.stream):
            self._begun.add(number)
            yield from self._recover(receiver, batch)
        elif standing is not Standing.STALE:
            self._following.meet(batch.stream)

    def _recover(self, receiver: Receiver, behind: Batch) -> Iterator[Message]:
        """What is missing before a batch, and all that came since."""
        stream = behind.stream
        if not self._may_ask(stream):
            return
        self.n_gaps += self._following.has_met(stream) and stream not in self._retries
        try:
            while True:
                wanted = self._following.wanted(stream)
                had_snapshot = False
                for data in receiver.ask(stream, wanted, _ANSWER_S):
                    for message in self._take(-1, receiver, data, is_answer=True):
                        had_snapshot |= isinstance(message, Part)
                        yield message
                now = self._following.wanted(stream)
                if now == wanted or not (had_snapshot or now == 0):
                    break
        except TimeoutError as error:
            if stream not in self._retries:
                logger.warning("tenuto: events before %d are missing, and it is asked again: %s", behind.first, error)
            self._ask_later(stream)
            return
        standing, rest = self._following.place(behind)
        if standing is Standing.GAP:
            self._ask_later(stream)
            return
        self._retries.pop(stream, None)
        self._following.meet(stream)
        if standing is Standing.NEXT:
            self._following.took(rest)
            yield rest

    def _may_ask(self, what: bytes | int) -> bool:
        return self._clock() >= self._retries.get(what, (0.0, 0.0))[0]

    def _ask_later(self, what: bytes | int) -> None:
        pause_s = min(_MOST_RETRY_S, 2 * self._retries.get(what, (0.0, _LEAST_RETRY_S / 2))[1])
        self._retries[what] = (self._clock() + pause_s, pause_s)

    def _decoded(self, data: bytes) -> Message | None:
        try:
            return decode(data)
        except EventsError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("tenuto: messages are not understood and left out: %s", error)
            return None


def subscribe(*urls: str, n_ranks: int = 1) -> Subscription:
    """Follow the publishers at these URLs, as they stand in `events.url`, on `n_ranks` data-parallel ranks each.

    Raises `ConfigError` for a URL that is none, and for a library that is missing; not for a publisher that is away.
    """
    addresses = [parse_address(url, "url") for url in urls]
    each = [address.of_rank(rank) for address in addresses for rank in range(n_ranks)]
    return Subscription([make_receiver(address) for address in dict.fromkeys(each)])
