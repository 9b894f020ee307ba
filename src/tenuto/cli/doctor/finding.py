"""One line of the doctor's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum


class Status(Enum):
    """How much a finding matters."""

    OK = "ok"
    WARN = "warn"  # works, but worse than it could
    FAIL = "fail"  # does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen, and what to do about it unless it is ok."""

    name: str
    status: Status
    text: str
    fix: str = ""

    def as_json(self) -> dict[str, str]:
        """With the status by its word."""
        return asdict(self) | {"status": self.status.value}


def ok(name: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(name, Status.OK, text)


def warn(name: str, text: str, fix: str) -> Finding:
    """It works, but not well."""
    return Finding(name, Status.WARN, text, fix)


def fail(name: str, text: str, fix: str) -> Finding:
    """It does not work."""
    return Finding(name, Status.FAIL, text, fix)
