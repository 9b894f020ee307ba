"""The life of a slot: four states, and the only transitions there are."""

from __future__ import annotations

from enum import Enum, IntEnum


class SlotState(IntEnum):
    """What a slot's content is; the values index arrays."""

    RESET = 0  #: no content
    PARTIAL = 1  #: tokens are being added
    COMPLETE = 2  #: full, bytes arriving or arrived, invisible to others
    REGISTERED = 3  #: matchable


class Trigger(Enum):
    """What moves a slot."""

    INIT = "init"  #: a sequence starts to fill it
    APPLY = "apply"  #: a whole block is assigned to it
    COMMIT = "commit"  #: the sequence filled it
    REGISTER = "register"  #: every rank has every byte
    DISCARD = "discard"  #: its creator gives it up
    EVICT = "evict"  #: the policy chose it
    INVALIDATE = "invalidate"  #: its bytes are known to be wrong, or its cache was reset


TRANSITIONS: dict[tuple[SlotState, Trigger], SlotState] = {
    (SlotState.RESET, Trigger.INIT): SlotState.PARTIAL,
    (SlotState.RESET, Trigger.APPLY): SlotState.COMPLETE,
    (SlotState.RESET, Trigger.DISCARD): SlotState.RESET,
    (SlotState.PARTIAL, Trigger.COMMIT): SlotState.COMPLETE,
    (SlotState.PARTIAL, Trigger.DISCARD): SlotState.RESET,
    (SlotState.COMPLETE, Trigger.REGISTER): SlotState.REGISTERED,
    (SlotState.COMPLETE, Trigger.DISCARD): SlotState.RESET,
    (SlotState.REGISTERED, Trigger.EVICT): SlotState.RESET,
    (SlotState.REGISTERED, Trigger.INVALIDATE): SlotState.RESET,
}
"""All transitions that there are: any other raises `StateError`."""
