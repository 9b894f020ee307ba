"""One worker's disk tier as its events tell it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tenuto.advisor.orders import Rows
from tenuto.advisor.returning import ReturnModel
from tenuto.advisor.table import BlockTable
from tenuto.advisor.visits import Visits
from tenuto.events import Batch, Group, Kind, Message
from tenuto.events.batch import TIERS, cut
from tenuto.pools.facts import TierKind
from tenuto.tokens import BlockHash

_DISK = TIERS.index(TierKind.DISK)


class WorkerIndex:
    """Takes a worker's messages, in order, as a subscription yields them.

    What is in its disk tier is in `table`. Reads of host memory count as uses of the same blocks on disk, if they are
    there. What was learnt of returns outlives a stream.
    """

    def __init__(self) -> None:
        self.table = BlockTable()
        self.model = ReturnModel()
        self.heard_s = 0.0
        """When its last batch was sent, in seconds, by the clock of the messages. It never goes back."""
        self.block_tokens = 0
        self._touched: set[int] = set()
        self._unaged: set[int] = set()
        """Blocks of a snapshot, which tells no times: their age counts from the first time told after it."""
        self._visits = Visits(self.table, self.model)
        self._stream = b""
        self._is_timed = False

    def take(self, message: Message) -> None:
        """Take in a batch, or a part of a snapshot."""
        if message.stream != self._stream or (not isinstance(message, Batch) and message.part == 0):
            self._stream = message.stream
            self._remove(self.table.all_rows().tolist())
        if isinstance(message, Batch):
            sent_s = message.time_ms / 1e3
            self.heard_s = max(self.heard_s, sent_s) if self._is_timed else sent_s
            self._is_timed = True
            self.tell_time(self.heard_s)
        for group in message.groups:
            self._take_group(group, is_live=isinstance(message, Batch))
        if not isinstance(message, Batch) and message.is_last:
            self.table.order()

    def tell_time(self, now_s: float) -> None:
        """For blocks whose age nobody told: it counts from now."""
        if self._unaged:
            self.table.used_s[list(self._unaged)] = now_s
            self._unaged.clear()

    def take_touched(self) -> Rows:
        """Blocks that were read or came since the last call, each once."""
        table, touched = self.table, np.asarray(sorted(self._touched), np.int64)
        self._touched = set()
        return touched[table.is_here[touched]]

    def touch_again(self, rows: Rows) -> None:
        """Some of them wait for the next call."""
        self._touched.update(rows.tolist())

    def _take_group(self, group: Group, *, is_live: bool) -> None:
        is_disk = group.tier == _DISK
        if group.kind == Kind.USED:
            self._use(_hashes(group.hashes))
        elif is_disk and group.kind == Kind.STORED:
            self.block_tokens = group.block_tokens
            self._store(group, is_live=is_live)
        elif is_disk and group.kind == Kind.REMOVED:
            volume = self.table.volume_number(group.volume)
            rows = self.table.known(_hashes(group.hashes))
            self._remove([row for row in rows if self.table.volume[row] == volume])
        elif is_disk and group.kind == Kind.CLEARED:
            self._remove((self.table.in_volume(group.volume) if group.volume else self.table.all_rows()).tolist())

    def _use(self, hashes: Sequence[BlockHash]) -> None:
        for rows in self._chains(self.table.known(hashes)):
            self._visits.read(rows, self.heard_s)
            self._touched.update(rows)

    def _store(self, group: Group, *, is_live: bool) -> None:
        """New blocks, and such as were moved here."""
        table = self.table
        volume = table.volume_number(group.volume)
        columns = zip(_hashes(group.hashes), _hashes(group.parents), _hashes(group.prefixes), strict=True)
        new: list[int] = []
        for block, parent, prefix in columns:
            row = table.rows.get(block)
            if row is None:
                new.append(table.add(block, parent, prefix, volume))
            else:
                table.volume[row] = volume
        if not is_live:
            table.used_s[new] = self.heard_s
            self._unaged.update(new)
            return
        for rows in self._chains(new):
            self._visits.add(rows, self.heard_s)
        self._touched.update(new)

    def _chains(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """Cut where a block does not continue the one before it."""
        table, some = self.table, list[int]()
        for row in rows:
            if some and table.parents[row] != table.hashes[some[-1]]:
                yield some
                some = []
            some.append(row)
        if some:
            yield some

    def _remove(self, rows: Sequence[int]) -> None:
        self.model.ended(self.table, np.asarray(rows, np.int64), self.heard_s)
        for row in rows:
            self.table.remove(row)
        self._unaged.difference_update(rows)
        if not len(self.table):
            self._visits.forget()


def _hashes(column: bytes) -> list[BlockHash]:
    return [BlockHash(block) for block in cut(column)]
