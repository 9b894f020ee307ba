"""How a hit can be loaded: before its request runs, or under the forward that uses it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tenuto.connectors.session.setup import Setup
from tenuto.connectors.session.tracker import RequestTracker, RequestView
from tenuto.manager import Hit, Offer, n_leaving


@dataclass(frozen=True, slots=True)
class Situation:
    """A hit for a prompt of `n_tokens`, of which the engine has `n_have`, beside `n_others` requests."""

    hit: Hit
    n_have: int
    n_tokens: int
    n_others: int


def n_layerable(setup: Setup, hit: Hit, offer: Offer) -> int:
    """How many blocks of a hit, from the first on, can be loaded layer by layer, so that a token is left to compute.

    Where the engine plans ahead it hears of failures too late, so that nothing may fail: the bytes are in host memory,
    verified.
    """
    if setup.config.runtime.onboard == "async":
        return 0
    n_safe = 0
    for span in hit.spans:
        if setup.is_async_scheduled and span.place != "host":
            break
        n_safe += len(span.keys)
    return min(n_safe, n_leaving(offer))


class Unproven:
    """Requests that compute on loads by layers, which may fail: others must not compute on their pages meanwhile.

    An engine lists pages in its prefix cache when it gives them to a request, before they are filled. A request that it
    gives them too, in the same step, would go on from there while the first one computes again what failed, in several
    steps; and when that one is aborted, or preempted, nobody does.
    """

    def __init__(self, setup: Setup) -> None:
        self._page_tokens = setup.page_tokens
        self._can_fail = not setup.is_async_scheduled
        self._now: list[RequestTracker] = []
        """Of the step that is being scheduled."""
        self._last: list[RequestTracker] = []
        """Of the last one that was planned, whether they have ended or not."""

    def begin(self, tracker: RequestTracker) -> None:
        """Its hit, found behind `hit_at` tokens, is loaded under the next forward."""
        if self._can_fail:
            self._now.append(tracker)

    def planned(self) -> None:
        """What follows is of another step."""
        self._last, self._now = self._now, []

    def is_shared(self, view: RequestView, n_computed: int) -> bool:
        """Whether the `n_computed` tokens that the engine has for a request may be some that are to be loaded."""
        for tracker in self._now:
            page = tracker.hit_at, tracker.hit_at + self._page_tokens
            if n_computed > tracker.hit_at and list(view.token_ids(*page)) == list(tracker.view.token_ids(*page)):
                return True
        return False

    def standing_on(self, pages: Collection[int]) -> set[int]:
        """Of the last step: these pages, which were not loaded, and all that was computed behind them."""
        found = set(pages)
        for tracker in self._last:
            first = next((at for at, page in enumerate(tracker.pages) if page in pages), len(tracker.pages))
            found.update(tracker.pages[first:])
        return found
