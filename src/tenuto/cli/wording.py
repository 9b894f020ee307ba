"""Numbers and foreign names in words for a terminal."""

from __future__ import annotations

import sys

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def size_text(n_bytes: int) -> str:
    """1536 → "1.5 KiB"."""
    value, unit = float(n_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{n_bytes} bytes"


def age_text(seconds: float) -> str:
    """7300 → "2 h"; "now" for less than a second."""
    for length, unit in _AGES:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "now"


def printable(text: str) -> str:
    """What somebody else named, with escapes for what would move the cursor or can't be encoded."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_encodable(text: str) -> bool:
    """Whether standard output takes this text as it is."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
