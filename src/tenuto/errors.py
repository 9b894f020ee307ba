"""Every error tenuto raises, and why a block can fail.

One root. Foreign exceptions (OSError, sqlite3.Error) are mapped here once, at the border where they appear.
"""

from __future__ import annotations

import errno
from enum import Enum


class TenutoError(Exception):
    """Root of all errors raised by tenuto."""


class ConfigError(TenutoError):
    """A setting is wrong; the message is one line that names the setting and the fix."""


class UnsupportedModelError(ConfigError):
    """The model or engine set-up cannot be served exactly; refused at start."""


class StateError(TenutoError):
    """A slot was asked for a transition that its state does not have."""


class FullError(TenutoError):
    """No room for what was asked for: all else is leased."""


class LeaseError(TenutoError):
    """A lease was used after it was consumed, or with a pool that did not give it."""


class InvariantError(TenutoError):
    """The books do not balance: a bug in tenuto, or in a policy of others, which the message names."""


class EventsError(TenutoError):
    """A message is not of the event stream, or of a version that is not known here."""


class StoreError(TenutoError):
    """A store could not do one block's read or write; carries the cause."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class Cause(Enum):
    """Why one block of a transfer failed."""

    CORRUPT = "corrupt"  #: header or sum does not match: forgotten, never served
    MISSING = "missing"  #: nothing is stored there
    IO_ERROR = "io_error"  #: the device refused or was short
    NO_SPACE = "no_space"  #: the device is full
    TIMEOUT = "timeout"  #: no answer before the deadline
    THROTTLED = "throttled"  #: a bounded queue was full
    CANCELLED = "cancelled"  #: withdrawn before it ran, or a block it depends on failed

    @property
    def is_loss(self) -> bool:
        """Whether the stored copy is worthless and must be forgotten."""
        return self in (Cause.CORRUPT, Cause.MISSING)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def store_error(error: OSError, what: str) -> StoreError:
    """Map an operating system error to a `StoreError`."""
    cause = Cause.NO_SPACE if error.errno in _FULL else Cause.IO_ERROR
    return StoreError(cause, f"{what}: {error.strerror or error}")
