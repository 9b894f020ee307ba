"""Items on their way through NIXL: a batch is one transfer, and when that fails each item is tried alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from tenuto.errors import Cause, StoreError, store_error
from tenuto.tiers.disk.runtime.books import ACCEPTED, Books, Submission
from tenuto.tiers.disk.runtime.contract import Done, Failed, Final, IoRequest, Op, Short
from tenuto.tiers.disk.runtime.descriptors import Descriptors
from tenuto.tiers.disk.runtime.nixl.agent import SharedAgent, kind_of


@dataclass(slots=True, eq=False)
class Item:
    """An accepted request; `n_bytes` of it are there to move."""

    submission: Submission
    index: int
    n_bytes: int = 0

    @property
    def request(self) -> IoRequest:
        """What was asked for."""
        return self.submission.requests[self.index]


@dataclass(slots=True, eq=False)
class Batch:
    """Items of one direction, under way as one transfer; their files stay open meanwhile."""

    op: Op
    items: list[Item]
    open_files: ExitStack
    n_files: int
    handle: object = None


def cut(items: Iterable[Item], most_files: int) -> list[tuple[Op, list[Item]]]:
    """Parts of one direction, one kind of memory, and at most so many different files each."""
    kinds: dict[tuple[Op, str], list[Item]] = {}
    for item in items:
        kinds.setdefault((item.request.op, kind_of(item.request.region.memory)), []).append(item)
    parts: list[tuple[Op, list[Item]]] = []
    for (op, _), alike in kinds.items():
        files: set[int] = set()
        part: list[Item] = []
        for item in alike:
            number = item.request.file.number
            if number not in files and len(files) == most_files:
                parts.append((op, part))
                part, files = [], set()
            part.append(item)
            files.add(number)
        parts.append((op, part))
    return parts


class Transfers:
    """Begins batches and sees how they end. For one thread."""

    def __init__(self, books: Books, agent: SharedAgent, files: Descriptors) -> None:
        self._books = books
        self._agent = agent
        self._files = files
        self._alignment = books.caps.io_alignment

    def guard(self, items: Sequence[Item], step: Callable[[], list[Batch]]) -> list[Batch]:
        """What a step gives. A bug in it, or in NIXL, ends its items, and not the thread that all others wait for."""
        try:
            return step()
        except BaseException as error:  # noqa: BLE001 - border of a thread: raised to whoever asks for the states
            failed = Failed(Cause.IO_ERROR, f"{type(error).__name__}: {error}")
            for item in items:
                if item.submission.states[item.index] is ACCEPTED:
                    self._books.end(item.submission, item.index, failed, error)
            return []

    def begin(self, op: Op, items: list[Item]) -> list[Batch]:
        """Do their work where it comes first, and send what can go; no batch when nothing can."""
        return self._send(op, [item for item in items if op is Op.READ or self._work(item)])

    def _send(self, op: Op, items: list[Item]) -> list[Batch]:
        open_files = ExitStack()
        fds: dict[int, int] = {}
        going = [item for item in items if self._prepare(item, open_files, fds)]
        if not going:
            open_files.close()
            return []
        requests = [item.request for item in going]
        here = [
            (request.region.memory.address + request.memory_offset, item.n_bytes, request.region.memory.device or 0)
            for item, request in zip(going, requests, strict=True)
        ]
        there = [(r.offset, item.n_bytes, fds[r.file.number]) for item, r in zip(going, requests, strict=True)]
        batch = Batch(op, going, open_files, len(fds))
        try:
            batch.handle = self._agent.start(op, kind_of(requests[0].region.memory), here, there)
        except StoreError as error:
            return self._failed(batch, str(error))
        return [batch]

    def _prepare(self, item: Item, open_files: ExitStack, fds: dict[int, int]) -> bool:
        """Open the file, and see how much of it is there; whether there is something to move."""
        request = item.request
        try:
            if request.file.number not in fds:
                fds[request.file.number] = open_files.enter_context(self._files.use(request.file))
            there = os.fstat(fds[request.file.number]).st_size - request.offset
        except FileNotFoundError:
            self._end(item, Failed(Cause.MISSING, f"{request.file.name} is gone"))
            return False
        except OSError as error:
            mapped = store_error(error, f"open {request.file.name}")
            self._end(item, Failed(mapped.cause, str(mapped)))
            return False
        except StoreError as error:
            self._end(item, Failed(error.cause, str(error)))
            return False
        item.n_bytes = request.length
        if request.op is Op.READ and there < request.length:
            item.n_bytes = max(0, there) // self._alignment * self._alignment
        if not item.n_bytes:
            self._end(item, Short(0))
        return item.n_bytes > 0

    def look(self, batch: Batch) -> list[Batch]:
        """It, if it is still under way; else what of it is tried again."""
        try:
            if not self._agent.is_done(batch.handle):
                return [batch]
        except StoreError as error:
            return self._failed(batch, str(error))
        self._release(batch)
        for item in batch.items:
            if item.n_bytes < item.request.length:
                self._end(item, Short(item.n_bytes))
            elif batch.op is Op.WRITE or self._work(item):
                self._end(item, Done(item.n_bytes))
        return []

    def _failed(self, batch: Batch, message: str) -> list[Batch]:
        """A transfer has one state for all: each item is tried alone, and the last word is that of its own."""
        self._release(batch)
        if len(batch.items) > 1:
            return [again for item in batch.items for again in self._send(batch.op, [item])]
        item = batch.items[0]
        self._end(item, Failed(Cause.IO_ERROR, f"{batch.op.value} {item.request.file.name}: {message}"))
        return []

    def _release(self, batch: Batch) -> None:
        if batch.handle is not None:
            with suppress(StoreError):
                self._agent.release(batch.handle)
        batch.open_files.close()

    def _work(self, item: Item) -> bool:
        """Do an item's work; when it fails, so has the item."""
        try:
            if item.request.work is not None:
                item.request.work()
        except StoreError as error:
            self._end(item, Failed(error.cause, str(error)))
        except BaseException as error:  # noqa: BLE001 - border of a thread: raised to whoever asks for the states
            failed = Failed(Cause.IO_ERROR, f"{type(error).__name__}: {error}")
            self._books.end(item.submission, item.index, failed, error)
        else:
            return True
        return False

    def _end(self, item: Item, state: Final) -> None:
        self._books.end(item.submission, item.index, state)
