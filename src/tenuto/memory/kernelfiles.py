"""Files that the kernel shows: whatever they hold, or where they are missing, reading them is no error."""

from __future__ import annotations

import re
from pathlib import Path

_NUMBER = re.compile(r"[0-9]{1,30}")


def kernel_text(path: Path) -> str:
    """The text of a file; nothing where this kernel has no such file, or does not show it."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def kernel_number(text: str) -> int | None:
    """From decimal digits with space around them; None for anything else, such as "max"."""
    digits = text.strip()
    return int(digits) if _NUMBER.fullmatch(digits) else None
