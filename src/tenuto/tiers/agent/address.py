"""Where an agent's socket is."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

CONTROL = "control"
"""The socket's name in a rank's folder."""


@contextmanager
def short_address(path: Path) -> Generator[str]:
    """A path as a socket's address, by its folder's descriptor: addresses have at most 107 bytes. Raises `OSError`."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
