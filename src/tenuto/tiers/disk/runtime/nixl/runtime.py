"""The runtime over NIXL's agent: one thread begins transfers and looks for their ends."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tenuto.tiers.disk.runtime.books import ACCEPTED, Books, Submission
from tenuto.tiers.disk.runtime.contract import Caps, File, IoRequest, Memory, Op, Region, State
from tenuto.tiers.disk.runtime.descriptors import Descriptors
from tenuto.tiers.disk.runtime.direct import DirectFiles
from tenuto.tiers.disk.runtime.nixl.agent import AgentFiles, AgentRegions, SharedAgent
from tenuto.tiers.disk.runtime.nixl.library import Library
from tenuto.tiers.disk.runtime.nixl.transfers import Batch, Item, Transfers, cut

_LOOK_S = 50e-6
_JOIN_S = 5.0


class NixlRuntime:
    """See `StorageRuntime`. Items of a submission go as one transfer; when that fails, each is tried alone."""

    def __init__(self, caps: Caps, root: Path, library: Library, max_open_files: int) -> None:
        self._books = Books(caps)
        self._agent = SharedAgent(library)
        self._folder = DirectFiles(root)
        files = AgentFiles(self._agent, root)
        self._files = Descriptors(files.open, max_open_files, files.closing)
        self._regions = AgentRegions(self._agent)
        self._most_files = max(1, max_open_files // 2)
        self._changed = threading.Condition()
        self._new: list[list[Item]] = []
        self._transfers = Transfers(self._books, self._agent, self._files)
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name="tenuto-nixl", daemon=True)
        self._thread.start()

    @property
    def caps(self) -> Caps:
        """See `StorageRuntime`."""
        return self._books.caps

    def sizes(self, folder: str) -> dict[str, int]:
        """See `StorageRuntime`."""
        return self._folder.sizes(folder)

    def reserve(self, name: str, n_bytes: int) -> None:
        """See `StorageRuntime`."""
        self._folder.reserve(name, n_bytes)

    def delete(self, name: str) -> None:
        """See `StorageRuntime`."""
        self._folder.delete(name)

    def n_extents(self, name: str) -> int:
        """See `StorageRuntime`."""
        return self._folder.n_extents(name)

    def open_batch(self, names: Sequence[str], *, is_writable: bool = True) -> list[File]:
        """See `StorageRuntime`."""
        return self._books.open(names, is_writable=is_writable)

    def close_batch(self, files: Sequence[File]) -> None:
        """See `StorageRuntime`."""
        self._books.forget(files)
        for file in files:
            self._files.forget(file)

    def register_memory(self, memory: Memory) -> Region:
        """See `StorageRuntime`."""
        return self._books.register(memory, self._regions.attach)

    def unregister_memory(self, region: Region) -> None:
        """See `StorageRuntime`."""
        self._books.unregister(region, self._regions.detach)

    def submit(self, requests: Sequence[IoRequest], stream: object = None) -> Submission:
        """See `StorageRuntime`."""
        submission = self._books.admit(requests, stream)
        accepted = [Item(submission, index) for index, state in enumerate(submission.initial) if state is ACCEPTED]
        if accepted:
            with self._changed:
                self._new.append(accepted)
                self._changed.notify()
        return submission

    def poll(self, submission: Submission) -> tuple[State, ...]:
        """See `StorageRuntime`."""
        return self._books.states(submission)

    def wait(self, submission: Submission, timeout_s: float | None = None) -> tuple[State, ...]:
        """See `StorageRuntime`."""
        return self._books.wait(submission, timeout_s)

    def close(self) -> None:
        """See `StorageRuntime`."""
        if not self._books.close():
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)  # a plugin that hangs is left behind: a daemon
        self._files.close()
        with self._books.registering:
            self._regions.close()

    def _loop(self) -> None:
        active: list[Batch] = []
        waiting: deque[tuple[Op, list[Item]]] = deque()
        while True:
            with self._changed:
                while not self._new and not active and not waiting:
                    if self._is_closed:
                        return
                    self._changed.wait()
                waiting.extend(part for items in self._new for part in cut(items, self._most_files))
                self._new.clear()
            while waiting and sum(batch.n_files for batch in active) < self._most_files:
                op, items = waiting.popleft()
                active += self._transfers.guard(items, partial(self._transfers.begin, op, items))
            before = len(active)
            looks = [(batch.items, partial(self._transfers.look, batch)) for batch in active]
            active = [left for items, look in looks for left in self._transfers.guard(items, look)]
            if active and len(active) == before:
                time.sleep(_LOOK_S)
