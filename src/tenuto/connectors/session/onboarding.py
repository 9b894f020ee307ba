"""How a hit is loaded: before its request runs, or under the forward that uses it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tenuto.connectors.session.setup import Setup
from tenuto.manager import Hit


@dataclass(frozen=True, slots=True)
class Situation:
    """A hit for a prompt of `n_tokens`, of which the engine has `n_have`, beside `n_others` requests."""

    hit: Hit
    n_have: int
    n_tokens: int
    n_others: int


def is_layered(setup: Setup, now: Situation) -> bool:
    """Whether it is loaded layer by layer: as set, or, with "auto", when no other request would wait for its layers.

    Something must be left to compute. Where the engine plans ahead it hears of failures too late, so that nothing may
    fail: the bytes are in host memory, verified.
    """
    mode = setup.config.runtime.onboard
    if mode == "async" or (mode == "auto" and now.n_others):
        return False
    end = (now.hit.start + now.hit.n_blocks) * setup.layout.block_tokens
    is_safe = not setup.is_async_scheduled or all(span.place == "host" for span in now.hit.spans)
    return is_safe and end < now.n_tokens
