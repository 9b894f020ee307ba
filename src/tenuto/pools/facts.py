"""What happened to blocks, for whoever publishes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tenuto.tokens import BlockKey, TokenBlock


class TierKind(Enum):
    """The four kinds of place."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Stored:
    """These blocks can be matched in `tier` from now on.

    `blocks`: the same with their tokens, in the order of `keys`; empty where tokens are not known. `volume`: the place
    within the tier, empty where there is one only.
    """

    tier: TierKind
    keys: tuple[BlockKey, ...]
    blocks: tuple[TokenBlock, ...] = field(default=(), compare=False, repr=False)
    volume: str = ""


@dataclass(frozen=True, slots=True)
class Removed:
    """These blocks can't be matched in `tier` (and `volume`) any more."""

    tier: TierKind
    keys: tuple[BlockKey, ...]
    volume: str = ""


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing that was in `tier` (and `volume`) can be matched any more."""

    tier: TierKind
    volume: str = ""


@dataclass(frozen=True, slots=True)
class Used:
    """These blocks were asked for, found in `tier` (and `volume`), and are loaded. They stay where they are."""

    tier: TierKind
    keys: tuple[BlockKey, ...]
    volume: str = ""


Fact = Stored | Removed | Cleared | Used
"""What became of blocks."""
