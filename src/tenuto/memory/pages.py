"""Where a block lies in an engine's paged memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageRun:
    """The engine pages of one block, in token order; those before `first` are left alone by a load."""

    pages: tuple[int, ...]
    first: int = 0
