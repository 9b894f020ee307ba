"""How a hit can be loaded: before its request runs, or under the forward that uses it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tenuto.connectors.session.setup import Setup
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
