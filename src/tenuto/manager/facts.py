"""What happened to blocks, for whoever publishes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tenuto.tokens import BlockKey


class TierKind(Enum):
    """The four kinds of place."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Stored:
    """These blocks can be matched in `tier` from now on."""

    tier: TierKind
    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """These blocks can't be matched in `tier` any more."""

    tier: TierKind
    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing that was in `tier` can be matched any more."""

    tier: TierKind


Fact = Stored | Removed | Cleared
"""What became of blocks."""
