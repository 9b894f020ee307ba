"""Any number of items through a runtime that takes some at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk.runtime.books import Submission
from tenuto.tiers.disk.runtime.contract import Accepted, Failed, IoRequest, Reason, Rejected, State, StorageRuntime

FULL = Rejected(Reason.FULL)
_BACKOFF_S = 0.0005
_SHARE = 4
"""A window goes out in so many submissions, so that one is always behind the other."""


def move(
    runtime: StorageRuntime,
    requests: Sequence[IoRequest],
    *,
    timeout_s: float | None = None,
    window: int | None = None,
    stream: object = None,
) -> list[State]:
    """Move all of them, at most `window` at a time, and send again, and only, what the runtime had no room for.

    The state of each, in order: final; rejected for another reason than `FULL`; `Failed` (TIMEOUT) for what had not
    begun after `timeout_s`; and accepted for what was under way then, whose memory is not to be touched. A bug in an
    item's work is raised when nothing is under way any more.
    """
    mover = _Mover(runtime, requests, min(window or runtime.caps.max_in_flight, runtime.caps.max_in_flight), stream)
    try:
        mover.run(timeout_s)
    except BaseException:
        mover.let_end()
        raise
    return mover.states


class _Mover:
    def __init__(self, runtime: StorageRuntime, requests: Sequence[IoRequest], window: int, stream: object) -> None:
        self._runtime = runtime
        self._requests = requests
        self._window = window
        self._stream = stream
        self._left = deque(range(len(requests)))
        self._sent: deque[tuple[Submission, list[int]]] = deque()
        self._n_in_flight = 0
        self.states: list[State] = [FULL] * len(requests)

    def run(self, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._left or self._sent:
            rest_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            n_new = self._send() if self._left and rest_s != 0.0 else 0
            if self._left and n_new and self._n_in_flight < self._window:
                continue
            if self._sent:
                if not self._take(rest_s):
                    break
            elif rest_s == 0.0:
                break
            elif self._left:
                time.sleep(_BACKOFF_S)  # others have filled the runtime
        for index in self._left:
            self.states[index] = Failed(Cause.TIMEOUT, f"not begun after {timeout_s} s")

    def let_end(self) -> None:
        """Wait for what is under way: whoever called gives its memory to others."""
        for submission, _ in self._sent:
            submission.ended.wait()

    def _send(self) -> int:
        """Submit some; how many were accepted."""
        n = min(len(self._left), self._window - self._n_in_flight, max(1, self._window // _SHARE))
        if n <= 0:
            return 0
        indices = [self._left.popleft() for _ in range(n)]
        submission = self._runtime.submit([self._requests[index] for index in indices], self._stream)
        again: list[int] = []
        for index, state in zip(indices, submission.initial, strict=True):
            self.states[index] = state
            if state == FULL:
                again.append(index)
        self._left.extendleft(reversed(again))
        n_accepted = sum(isinstance(state, Accepted) for state in submission.initial)
        if n_accepted:
            self._sent.append((submission, indices))
            self._n_in_flight += n_accepted
        return n_accepted

    def _take(self, timeout_s: float | None) -> bool:
        """Wait for what was sent first; whether it has ended. On a time-out all that is under way is looked at."""
        submission, indices = self._sent[0]
        try:
            self._keep(indices, submission, self._runtime.wait(submission, timeout_s))
        except StoreError as error:
            if error.cause is not Cause.TIMEOUT:
                raise
            for other, its in self._sent:
                self._keep(its, other, self._runtime.poll(other))
            return False
        self._sent.popleft()
        self._n_in_flight -= sum(isinstance(state, Accepted) for state in submission.initial)
        return True

    def _keep(self, indices: list[int], submission: Submission, states: tuple[State, ...]) -> None:
        for index, initial, state in zip(indices, submission.initial, states, strict=True):
            if isinstance(initial, Accepted):
                self.states[index] = state
