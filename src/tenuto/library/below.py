"""The tiers below the device, for a caller that waits: the manager's plans, run and answered in one process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial

from tenuto.config import Runtime
from tenuto.events.feed import Feed
from tenuto.library.figures import count_found, count_loaded, count_lost, has_room, is_folder_there
from tenuto.manager import BlockManager, DiskHealth, Filled, Hit, Pending
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.pages import PageRun
from tenuto.metrics import BACKLOG_BLOCKS, series
from tenuto.pools import Allocated, Full, Lease, Pool
from tenuto.pools.facts import Removed, Stored, TierKind
from tenuto.tiers.agent.tier import TierStore
from tenuto.tokens import HashChain
from tenuto.transfers.engine import TransferEngine
from tenuto.transfers.movers import Movers
from tenuto.transfers.plan import Route, TransferResult

logger = logging.getLogger(__name__)

_TURN_S = 0.05
"""The longest wait for a result before the disk's growth is looked at again."""
_CLOSE_S = 5.0


class TiersBelow:
    """Host memory and disk. One thread at a time; results are taken in while a call waits, and in the next call."""

    def __init__(
        self,
        device: Pool,
        manager: BlockManager,
        engine: TransferEngine,
        movers: Movers,
        arena: HostArena,
        store: TierStore | None,
        runtime: Runtime,
        poll_s: float,
        feed: Feed,
        *,
        is_disk_off: bool = False,
    ) -> None:
        self.manager = manager
        self.feed = feed
        self._device = device
        self._engine = engine
        self._movers = movers
        self._arena = arena
        self._store = store
        self._health = DiskHealth(manager, runtime.retry_s, time.monotonic)
        self._poll_s = poll_s
        self._polled_at = time.monotonic()
        self._held: dict[int, Lease] = {}  # device blocks, by the transfer that reads them
        self._wanted: dict[int, TransferResult | None] = {}  # results that a call waits for
        self._is_stuck = False
        self._is_disk_off = is_disk_off  # it was asked for, and can't be had
        self._n_lost = 0  # as the last flush knew
        if store is not None:
            _resize(manager, store)
            manager.restore_disk(store.recovered)
            self._look_at_peers(store)
        feed()

    def turn(self, wait_s: float = 0.0) -> None:
        """Take in what has ended, waiting up to `wait_s` for it, and send what there is room for now."""
        news = None if self._store is None else self._store.take_news()  # before the results: written, then moved
        for result in sorted(self._engine.poll(wait_s), key=lambda result: result.transfer_id):
            transfer = self.manager.complete(result)
            self._health.note(transfer.route, result)
            if result.transfer_id in self._wanted:
                self._wanted[result.transfer_id] = result
            if (held := self._held.pop(result.transfer_id, None)) is not None:
                held.release()
        self._health.update()
        if self._store is not None:
            _resize(self.manager, self._store)
        if news:
            self.manager.disk_changed(news.moved, news.lost)
        self._engine.submit(self.manager.pump())
        self.feed()

    def bring(self, chain: HashChain, start: int, timeout_s: float) -> Lease:
        """Load what there is of a chain from block `start` on into the device; a lease on what came, in one run."""
        deadline = time.monotonic() + timeout_s
        hit = self._find(chain, start, deadline)
        room = None if hit is None else _room_for(hit, self._device)
        if hit is None or room is None:
            return self._device.match([])
        self.feed.tell(Removed, TierKind.DEVICE, room.evicted)
        with room.lease as lease:
            self._device.apply(lease, [chain.key(index) for index in range(start, start + hit.n_blocks)])
            pieces = count_found(self.manager.recorder, hit, chain.block_tokens)
            failed = self._load(hit, lease.slots, deadline)
            n_sound = min(failed, default=hit.n_blocks) * chain.block_tokens
            count_loaded(self.manager.recorder, pieces, n_sound)
            done = self._device.register(lease, failed)
            held = done.lease
            self.feed.tell(Stored, TierKind.DEVICE, done.new)
        with held.split(range(min(failed, default=len(held)), len(held))):  # behind a gap: nobody holds them
            return held

    def keep(self, filled: Filled, timeout_s: float) -> None:
        """Stage registered device blocks, leased by the caller, into host memory, and send them on to disk.

        Waits until the last of them is on its way to disk, so that none loses its host slot before; but once for a disk
        that is stuck.
        """
        step = max(1, len(self.manager.host) // 2)
        deadline = time.monotonic() + timeout_s
        for at in range(0, len(filled.pages), step):
            runs = filled.pages[at : at + step]
            self._wait_until(partial(_has_room, self.manager.host, len(runs)), deadline)
            planned = self.manager.offload([Filled(filled.chain, filled.start + at, runs)])
            for transfer in planned:
                if transfer.route is Route.DEVICE_TO_HOST:  # not evicted and written while it is read
                    self._held[transfer.id] = self._device.match([key.hash for key in transfer.keys])
            self._engine.submit(planned)
            self._engine.settle()
            self._wait_until(self._has_caught_up, deadline)

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is on its way; whether all that was to be kept since the last flush is where it was to be.

        What `tiers.disk.admission` did not find worth a write was not to be kept.
        """
        is_in_time = self.drain(timeout_s)
        n_before, self._n_lost = self._n_lost, count_lost(self.manager.recorder)
        is_disk_fit = not self._is_disk_off and has_room(self._store) and is_folder_there(self._store)
        return is_in_time and self._n_lost == n_before and is_disk_fit

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is on its way or waits to be; whether that came in time."""
        deadline = time.monotonic() + timeout_s
        self.turn()
        while self.manager.has_pending:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self.turn(min(left_s, _TURN_S))
        return True

    def reset(self, namespace: bytes, epoch: int) -> None:
        """Forget every block; those that come are of this namespace digest and epoch."""
        codec = ExtentCodec(self._movers.codec.layout, namespace)
        self.manager.reset()
        self._movers.codec = codec
        if self._store is not None:
            self._store.reset(namespace, epoch)
        self.feed.rename(namespace, TierKind.DEVICE)

    def close(self, timeout_s: float) -> None:
        """Let pending writes end, up to `timeout_s`, and close all of it."""
        with ExitStack() as closing:
            closing.callback(self._close)
            closing.callback(self.feed.close)
            if not self.drain(timeout_s):
                logger.warning(
                    "tenuto: %d transfers had not ended after %.0f s: their blocks are not kept",
                    self._engine.n_pending(), timeout_s,
                )  # fmt: skip
            is_folder_there(self._store)

    def _close(self) -> None:
        if not self._engine.close(_CLOSE_S):  # a lane that hangs must not lose the memory under it
            logger.warning("tenuto: a transfer hangs: host memory and the disk's folder stay open till the end")
            return
        with ExitStack() as closing:
            closing.callback(self._arena.close)
            if self._store is not None:
                closing.callback(self._store.close)

    def _find(self, chain: HashChain, start: int, deadline: float) -> Hit | None:
        """The hit, once what is on its way into host memory has come; with what other processes have listed since."""
        if self._store is not None and 0 < self._poll_s < time.monotonic() - self._polled_at:
            self._look_at_peers(self._store)
        self.turn()
        while isinstance(found := self.manager.lookup(chain, start), Pending):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            self.turn(min(left_s, _TURN_S))
        return found if isinstance(found, Hit) else None

    def _load(self, hit: Hit, slots: Sequence[int], deadline: float) -> set[int]:
        """Load a hit's blocks into device slots; the indices of those that were not."""
        onboard = self.manager.onboard(hit, [PageRun((slot,)) for slot in slots])
        first: dict[int, int] = {}  # block, by transfer
        at = 0
        for transfer in onboard.transfers:
            if transfer.id in onboard.awaited:
                first[transfer.id] = at
                at += len(transfer.keys)
        self._engine.submit(onboard.transfers)
        results = self._wait_for(onboard.awaited, deadline)
        return {first[result.transfer_id] + index for result in results for index in result.failed}

    def _wait_for(self, awaited: Collection[int], deadline: float) -> list[TransferResult]:
        """Results of these transfers; loads that are late are given up."""
        self._wanted = wanted = dict[int, TransferResult | None].fromkeys(awaited)
        try:
            while None in wanted.values() and (left_s := deadline - time.monotonic()) > 0:
                self.turn(min(left_s, _TURN_S))
        finally:  # also after a Ctrl-C: the device slots are given back, and nothing may write them then
            self._engine.cancel([number for number, result in wanted.items() if result is None])
            while None in wanted.values():
                self.turn(_TURN_S)
        return [result for result in wanted.values() if result is not None]

    def _wait_until(self, holds: Callable[[], bool], deadline: float) -> None:
        """Take turns until it holds; where it did not in time, the next calls don't wait before it did once."""
        self.turn()
        while not holds():
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._is_stuck:
                self._is_stuck = True
                return
            self.turn(min(left_s, _TURN_S))
        self._is_stuck = False

    def _has_caught_up(self) -> bool:
        """Whether no block waits for room on the way to disk."""
        return self._store is None or not self.manager.recorder.snapshot().values.get(series(BACKLOG_BLOCKS))

    def _look_at_peers(self, store: TierStore) -> None:
        self._polled_at = time.monotonic()
        for volume, entries in store.peers.news().items():
            self.manager.peers.add(volume, entries)


def _resize(manager: BlockManager, store: TierStore) -> None:
    now = store.capacity()
    manager.resize_disk(now.n_slots, is_growing=now.is_growing, n_blocks=now.n_blocks)


def _has_room(host: Pool, n: int) -> bool:
    """Whether `n` host slots can be had, as far as there are so many."""
    now = host.statistics()
    return now.free + now.cached >= min(n, now.total)


def _room_for(hit: Hit, device: Pool) -> Allocated | None:
    """Device slots for as much of a hit as there is room for; the rest of it is given back."""
    answer = device.allocate(hit.n_blocks)
    if isinstance(answer, Full) and answer.available:
        hit.trim(answer.available)
        answer = device.allocate(hit.n_blocks)
    if isinstance(answer, Full):
        hit.release()
        return None
    return answer
