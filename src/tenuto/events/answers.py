"""Answers to readers that have a gap: told bit by bit, so that no reader holds up what all are told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tenuto.events.batch import Part, Source, encode
from tenuto.events.grouping import BlockShape, group_facts
from tenuto.events.ways.way import Delivery, Sender
from tenuto.pools.facts import Stored

Numbered = Iterator[tuple[int, bytes]]
"""Messages, each with a number that says where in the stream it stands."""

_ROUND = 32  # messages of one answer, between two looks at what else there is
_TIMEOUT_S = 30.0  # without one that could be sent
_PAUSE_S = 0.001


@dataclass(slots=True)
class _Answer:
    asker: object
    messages: Numbered
    moved_at: float
    next: tuple[int, bytes | None] | None = None
    """What could not be sent yet."""


class Answers:
    """Those that are under way."""

    def __init__(self, way: Sender, clock: Callable[[], float]) -> None:
        self._way = way
        self._clock = clock
        self._open: deque[_Answer] = deque()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def pause_s(self) -> float:
        """How long to wait before the next round."""
        return _PAUSE_S if all(answer.next for answer in self._open) else 0.0

    def begin(self, asker: object, messages: Numbered) -> None:
        """Tell these messages to who asked."""
        self._open.append(_Answer(asker, messages, self._clock()))

    def go_on(self) -> None:
        """A round: some more of each."""
        for _ in range(len(self._open)):
            answer = self._open.popleft()
            if self._send_some(answer):
                self._open.append(answer)

    def _send_some(self, answer: _Answer) -> bool:
        """Whether there is still more."""
        for _ in range(_ROUND):
            if answer.next is None:
                answer.next = next(answer.messages, (0, None))
            match self._way.answer(answer.asker, *answer.next):
                case Delivery.DONE:
                    is_whole = answer.next[1] is None
                    answer.next, answer.moved_at = None, self._clock()
                    if is_whole:
                        return False
                case Delivery.LATER:
                    return self._clock() - answer.moved_at < _TIMEOUT_S
                case Delivery.GONE:
                    return False
        return True


def snapshot_parts(
    stream: bytes, as_of: int, source: Source, blocks: Iterable[Stored], shape: BlockShape, most_blocks: int
) -> Numbered:
    """A snapshot's parts. Everything up to `as_of` came true before the first block is looked at."""
    number = 0
    waiting: Part | None = None
    for stored in blocks:
        for groups, _ in group_facts([stored], shape, most_blocks):
            if waiting is not None:
                yield as_of, encode(waiting)
            waiting = Part(stream, as_of, number, False, source, groups)
            number += 1
    groups = waiting.groups if waiting else ()
    yield as_of, encode(Part(stream, as_of, max(number - 1, 0), True, source, groups))
