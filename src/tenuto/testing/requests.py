"""Requests without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tenuto.tokens import ExtraKeys


@dataclass(slots=True)
class FakeRequest:
    """A `RequestView` over a list of token ids: append to `tokens` to generate."""

    request_id: str
    tokens: list[int]
    extra: ExtraKeys = field(default_factory=ExtraKeys)
    may_read: bool = True
    is_cacheable: bool = True
    n_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_prompt_tokens = len(self.tokens)

    @property
    def n_tokens(self) -> int:
        """See `RequestView`."""
        return len(self.tokens)

    def token_ids(self, start: int, stop: int) -> Sequence[int]:
        """See `RequestView`."""
        return self.tokens[start:stop]
