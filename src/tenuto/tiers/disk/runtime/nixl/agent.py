"""NIXL's agent, for several threads, with its errors mapped."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.tiers.disk.runtime.contract import File, Memory, Op, Region
from tenuto.tiers.disk.runtime.direct import open_direct, probe_file
from tenuto.tiers.disk.runtime.nixl.library import Library
from tenuto.tiers.disk.runtime.probe import remedy

logger = logging.getLogger(__name__)

Range = tuple[int, int, int]
"""Address, bytes, device; of a file: offset, bytes, descriptor."""

_LARGEST = 1 << 50
"""Bytes of a file that an item may reach: a plugin is told once, and files grow."""


class SharedAgent:
    """One call at a time. Raises `StoreError` with NIXL's words."""

    def __init__(self, library: Library) -> None:
        self._agent = library.agent
        self._errors = library.errors
        self._backends = [library.plugin]
        self._lock = threading.Lock()

    def register_memory(self, memory: Memory) -> object:
        """What `deregister` takes."""
        with self._calling("memory can't be registered"):
            ranges = [(memory.address, memory.n_bytes, memory.device or 0, "")]
            return self._agent.register_memory(ranges, kind_of(memory), self._backends)

    def register_file(self, fd: int) -> object:
        """What `deregister` takes."""
        with self._calling("a file can't be registered"):
            return self._agent.register_memory([(0, _LARGEST, fd, "")], "FILE", self._backends)

    def deregister(self, registered: object) -> None:
        """Undo it. What NIXL does not give up is told: nobody could do anything about it."""
        try:
            with self._calling("can't be deregistered"):
                self._agent.deregister_memory(registered, self._backends)
        except StoreError as error:
            logger.warning("tenuto: %s", error)

    def start(self, op: Op, kind: str, here: Sequence[Range], there: Sequence[Range]) -> object:
        """Begin a transfer between memory of one kind and files; its handle."""
        with self._calling("a transfer can't begin"):
            handle = self._agent.initialize_xfer(
                op.name, self._agent.get_xfer_descs(here, kind), self._agent.get_xfer_descs(there, "FILE"),
                self._agent.name, b"", self._backends,
            )  # fmt: skip
            try:
                self._agent.transfer(handle)  # an error shows when it is looked at
            except self._errors:
                self._agent.release_xfer_handle(handle)
                raise
            return handle

    def is_done(self, handle: object) -> bool:
        """Whether it has ended. Raises `StoreError` when it has failed."""
        with self._calling("a transfer failed"):
            state = self._agent.check_xfer_state(handle)
        if state not in ("PROC", "DONE"):
            raise StoreError(Cause.IO_ERROR, "NIXL: a transfer failed")
        return state == "DONE"

    def release(self, handle: object) -> None:
        """Forget a transfer."""
        with self._calling("a transfer can't be released"):
            self._agent.release_xfer_handle(handle)

    @contextmanager
    def _calling(self, what: str) -> Generator[None]:
        try:
            with self._lock:
                yield
        except self._errors as error:
            raise StoreError(Cause.IO_ERROR, f"NIXL: {what}: {error}") from error


class AgentRegions:
    """The agent's registrations of regions. Not thread-safe: the books call it one at a time."""

    def __init__(self, agent: SharedAgent) -> None:
        self._agent = agent
        self._registered: dict[int, object] = {}

    def attach(self, region: Region) -> None:
        """Register its memory. Raises `StoreError`."""
        self._registered[region.number] = self._agent.register_memory(region.memory)

    def detach(self, region: Region) -> None:
        """Give it up, unless `close` has."""
        if region.number in self._registered:
            self._agent.deregister(self._registered.pop(region.number))

    def close(self) -> None:
        """Give all of them up."""
        while self._registered:
            self._agent.deregister(self._registered.popitem()[1])


class AgentFiles:
    """Files below `root` that the agent knows as long as they are open."""

    def __init__(self, agent: SharedAgent, root: Path) -> None:
        self._agent = agent
        self._root = root
        self._registered: dict[int, object] = {}

    def open(self, file: File) -> int:
        """Its descriptor. Raises `OSError` and `StoreError`."""
        fd, _ = open_direct(self._root / file.name, is_writable=file.is_writable)
        try:
            self._registered[fd] = self._agent.register_file(fd)
        except StoreError:
            os.close(fd)
            raise
        return fd

    def closing(self, fd: int) -> None:
        """It is about to be closed."""
        self._agent.deregister(self._registered.pop(fd))


def check_files(root: Path, library: Library) -> None:
    """Register a file of the folder with a plugin over cuFile; the file is gone afterwards. POSIX takes any.

    Raises `ConfigError`, one line, where the plugin takes none, and `StoreError` where the folder does not.
    """
    if library.plugin == "POSIX":
        return
    agent = SharedAgent(library)
    with probe_file(root) as fd:
        try:
            registered = agent.register_file(fd)
        except StoreError as error:
            where = f"nixl+{library.plugin.lower()}"
            raise ConfigError(f"{where}: {root} can't be used: {error}; {remedy(fd)}") from error
        agent.deregister(registered)


def kind_of(memory: Memory) -> str:
    """As NIXL calls it."""
    return "DRAM" if memory.device is None else "VRAM"
