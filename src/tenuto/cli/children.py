"""Engines in child processes: the settings they all have, and an end for one that does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

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
    """When the block takes longer than `timeout_s`, the child's group is killed and the event set."""
    expired = threading.Event()

    def kill() -> None:
        expired.set()
        kill_group(child)

    timer = threading.Timer(timeout_s, kill)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()


def kill_group(child: subprocess.Popen[str]) -> None:
    """Kill a child that leads a session of its own, with all that it has started; one that has ended, too."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
