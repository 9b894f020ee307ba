"""What goes from host memory to disk, and when: a bounded window, and a bounded backlog behind it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from tenuto.manager.admission import Admission, AdmitAll
from tenuto.manager.results import Limits
from tenuto.metrics import SKIPPED_BLOCKS, Recorder
from tenuto.pools import Full, Lease, Pool, WritableLease
from tenuto.tokens import BlockHash, BlockKey

_BATCH = 16  # blocks of one write from the backlog, so that results come steadily


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """Write `keys` from host slots into the slots of `lease`; `evicted` lost theirs on disk for it.

    `reads` holds the host slots, unless the stage that fills them does.
    """

    keys: tuple[BlockKey, ...]
    host_slots: tuple[int, ...]
    lease: WritableLease
    evicted: list[BlockKey]
    reads: Lease | None = None


class WriteThrough:
    """Chooses writes; the manager makes transfers of them and tells when they have ended."""

    def __init__(
        self, host: Pool, disk: Pool, limits: Limits | None, arriving: Container[BlockHash], recorder: Recorder,
        admission: Admission | None,
    ) -> None:  # fmt: skip
        self._host = host
        self._arriving = arriving  # on their way into host memory: the manager's own record
        self._disk = disk
        self._limits = limits or Limits()
        self._recorder = recorder
        self._admission = admission or AdmitAll()
        self._writing: set[BlockHash] = set()
        self._backlog: dict[BlockHash, BlockKey] = {}  # in order
        self.is_enabled = True
        """Off while the disk refuses writes: what comes then is not kept on disk."""
        self.is_growing = False
        """More slots will come: nothing is evicted, the backlog waits."""

    def __len__(self) -> int:
        """Blocks that wait for room."""
        return len(self._backlog)

    def admit(self, keys: Sequence[BlockKey], host_slots: Sequence[int]) -> PlannedWrite | None:
        """Write these blocks, which are being staged, right behind the stage; what has no room now waits.

        What waits goes first.
        """
        if not self.is_enabled:
            self._recorder.add(SKIPPED_BLOCKS, len(keys), "disk_off")
            return None
        todo = self._worthy(keys)
        now = todo[: max(self._room() - len(self._backlog), 0)]
        write = self._plan([keys[i] for i in now], [host_slots[i] for i in now])
        for i in todo[len(write.keys) if write else 0 :]:
            self._wait(keys[i])
        return write

    def queue(self, keys: Sequence[BlockKey]) -> None:
        """Write blocks that are in host memory when there is room, unless they are on disk already."""
        if self.is_enabled:
            for i in self._worthy(keys):
                self._wait(keys[i])

    def _worthy(self, keys: Sequence[BlockKey]) -> list[int]:
        """Indices of the blocks that are not on disk, nor on their way there, and worth the write."""
        todo = [i for i, key in enumerate(keys) if not self._is_there(key)]
        if not todo:
            return todo
        n_free = len(todo) if self.is_growing else max(self._disk.statistics().free - len(self._backlog), 0)
        mask = self._admission.admit([keys[i] for i in todo], n_free=n_free)
        worthy = [i for i, is_worthy in zip(todo, mask.tolist(), strict=True) if is_worthy]
        self._recorder.add(SKIPPED_BLOCKS, len(todo) - len(worthy), "not_admitted")
        return worthy

    def _wait(self, key: BlockKey) -> None:
        if len(self._backlog) >= self._limits.max_backlog:
            self._recorder.add(SKIPPED_BLOCKS, 1, "backlog_full")
            return
        self._backlog[key.hash] = key

    def next(self) -> PlannedWrite | None:
        """The next write from the backlog for which there is room now."""
        if not self.is_enabled:
            self._drop("disk_off")
        n = min(self._room(), _BATCH)
        if n <= 0 or not self._backlog:
            return None
        if not (len(self._disk) or self.is_growing):
            self._drop("no_disk_room")  # no slot will ever be had: nothing to wait for
        keys = self._oldest(n)
        held = self._host.match([key.hash for key in keys])
        write = self._plan(keys, held.slots, held)
        if write is None:
            held.release()
            return None
        for key in write.keys:
            del self._backlog[key.hash]
        return write

    def ended(self, keys: Sequence[BlockKey]) -> None:
        """These writes are over, one way or the other."""
        self._writing.difference_update(key.hash for key in keys)

    def reset(self) -> None:
        """Forget what waits."""
        self._backlog.clear()

    def _is_there(self, key: BlockKey) -> bool:
        return key.hash in self._disk or key.hash in self._writing or key.hash in self._backlog

    def _room(self) -> int:
        return self._limits.max_writes - len(self._writing)

    def _plan(self, keys: list[BlockKey], host_slots: list[int], reads: Lease | None = None) -> PlannedWrite | None:
        """A write of as many of these, the first ones first, as there are slots for."""
        answer = self._disk.allocate(len(keys), evict=not self.is_growing)
        if isinstance(answer, Full):
            keys = keys[: answer.available]
            answer = self._disk.allocate(len(keys), evict=not self.is_growing)
        if not keys or isinstance(answer, Full):
            return None
        self._disk.apply(answer.lease, keys)
        self._writing.update(key.hash for key in keys)
        return PlannedWrite(tuple(keys), tuple(host_slots[: len(keys)]), answer.lease, answer.evicted, reads)

    def _oldest(self, n: int) -> list[BlockKey]:
        """The first `n` of the backlog that are still in host memory; the others before them are dropped."""
        keys: list[BlockKey] = []
        gone: list[BlockHash] = []
        for block, key in self._backlog.items():
            if len(keys) == n:
                break
            if block in self._host:
                keys.append(key)
            elif block not in self._arriving:
                gone.append(block)
        for block in gone:
            del self._backlog[block]
        self._recorder.add(SKIPPED_BLOCKS, len(gone), "left_host")
        return keys

    def _drop(self, reason: str) -> None:
        self._recorder.add(SKIPPED_BLOCKS, len(self._backlog), reason)
        self._backlog.clear()
