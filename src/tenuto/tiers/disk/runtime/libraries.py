"""Shared libraries that come with the system, or with Python packages of NVIDIA's."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def load_library(name: str) -> ctypes.CDLL | None:
    """By its soname, as `libcufile.so.0`; None when there is none that loads.

    What has been loaded serves others that ask for the same soname later, as plugins do.
    """
    for candidate in (name, *(str(path) for path in packaged(name))):
        try:
            return ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL, use_errno=True)
        except OSError:
            continue
    return None


def packaged(name: str) -> list[Path]:
    """Where NVIDIA's Python packages have it."""
    return [found for entry in sys.path for found in sorted(Path(entry or ".").glob(f"nvidia/*/lib/{name}"))]
