"""What running requests have filled and nobody has staged yet."""

from __future__ import annotations

from collections.abc import Iterable

from tenuto.connectors.session.setup import Setup
from tenuto.connectors.session.tracker import Progress, RequestTracker
from tenuto.manager import Filled

MANY = 64
"""Blocks that are worth a transfer."""
MAX_STEPS = 16
"""Steps that a block is held back for at most."""
_NEVER = 1 << 62


class Filling:
    """Blocks of generated tokens are held back until there are many: a few each step would cost each step as much.

    They are safe on the engine's pages while their request keeps these; what a request that ends or loses them has
    filled is taken at once.
    """

    def __init__(self, setup: Setup) -> None:
        self.due: dict[str, int] = {}
        """By request: with fewer tokens computed than this and no new pages, a step of it is none of our business."""
        self._block_tokens = setup.layout.block_tokens
        self._keeps_generated = setup.config.runtime.cache_generated
        self._n_trailing = 0 if setup.keeps_trailing_block else 1
        self._held: dict[str, tuple[RequestTracker, int]] = {}
        self._n_blocks = 0
        self._n_steps = 0

    def note(self, tracker: RequestTracker, progress: Progress) -> bool:
        """Hold what this step fills of a request; whether some of it is of the prompt, which others may wait for."""
        view, request_id = tracker.view, tracker.view.request_id
        if progress.is_whole_table:
            tracker.pages = list(progress.pages)
        else:
            tracker.pages += progress.pages
            if progress.n_computed < self.due.get(request_id, 0):
                return False
        n_known = view.n_tokens if self._keeps_generated else view.n_prompt_tokens
        n_full = min(progress.n_computed, n_known) // self._block_tokens - self._n_trailing
        due = (max(n_full, tracker.n_stored) + 1 + self._n_trailing) * self._block_tokens
        is_over = tracker.is_stale or (due > n_known and not self._keeps_generated)
        self.due[request_id] = _NEVER if is_over else due
        if n_full <= tracker.n_stored or tracker.is_stale:
            return False
        _, before = self._held.get(request_id, (tracker, tracker.n_stored))
        self._held[request_id] = tracker, n_full
        self._n_blocks += n_full - before
        return tracker.n_stored * self._block_tokens < view.n_prompt_tokens

    def ignore(self, request_id: str) -> None:
        """Nothing of this request is kept."""
        self.due[request_id] = _NEVER

    def is_due(self) -> bool:
        """A step computes: whether what is held is many, or old."""
        self._n_steps += bool(self._held)
        return self._n_blocks >= MANY or self._n_steps >= MAX_STEPS

    def take(self, request_ids: Iterable[str]) -> list[Filled]:
        """What these requests have filled; it counts as stored."""
        filled: list[Filled] = []
        for request_id in request_ids:
            tracker, n_full = self._held.pop(request_id, (None, 0))
            if tracker is None:
                continue
            start, tracker.n_stored = tracker.n_stored, n_full
            self._n_blocks -= n_full - start
            tracker.extend(n_full * self._block_tokens)
            filled.append(Filled(tracker.chain, start, tracker.runs(start, n_full)))
        if not self._held:
            self._n_steps = 0
        return filled

    def take_all(self) -> list[Filled]:
        """What all of them have filled."""
        return self.take(list(self._held))

    def end(self, request_id: str) -> list[Filled]:
        """The request has ended: what it had filled."""
        self.due.pop(request_id, None)
        return self.take([request_id])

    def drop(self) -> None:
        """Forget it all: the cache was reset."""
        self._held.clear()
        self._n_blocks = self._n_steps = 0
