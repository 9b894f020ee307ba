"""Engines in child processes: the settings they all have, and an end for one that does not answer."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager

ENGINE_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment of an engine that lives in its child's own process, and calls nobody."""


@contextmanager
def killed_after(child: subprocess.Popen[str], timeout_s: float) -> Generator[threading.Event]:
    """When the block takes longer than `timeout_s`, the child is killed and the event set."""
    expired = threading.Event()

    def kill() -> None:
        expired.set()
        child.kill()

    timer = threading.Timer(timeout_s, kill)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
