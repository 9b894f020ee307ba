"""The block manager of one engine: host and disk pools, and what moves between them and the device."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from tenuto.errors import InvariantError
from tenuto.manager.admission import Admission
from tenuto.manager.blockset import BlockSet
from tenuto.manager.diskslots import DiskSlots
from tenuto.manager.figures import Gauges, record_result
from tenuto.manager.finder import Finder
from tenuto.manager.flights import Flight, Flights
from tenuto.manager.results import Filled, Hit, Limits, Lookup, Miss, Onboard, Pending, Span
from tenuto.manager.telling import Telling
from tenuto.manager.writethrough import PlannedWrite, WriteThrough
from tenuto.memory.pages import PageRun
from tenuto.metrics import SKIPPED_BLOCKS, Recorder
from tenuto.pools import Allocated, Full, Pool, WritableLease
from tenuto.pools.facts import Fact, TierKind
from tenuto.tokens import BlockHash, BlockKey, HashChain
from tenuto.transfers.plan import Route, Transfer, TransferResult


class BlockManager:
    """Sans-I/O, single-threaded; see the design.

    The caller runs the transfers and answers each with `complete`, once, in id order where one waits for another.
    Facts gather until `take_facts`. `block_bytes`: of a block on all ranks, for metrics.
    """

    def __init__(
        self, host: Pool, disk: Pool | None = None, limits: Limits | None = None,
        recorder: Recorder | None = None, block_bytes: int = 0, admission: Admission | None = None,
    ) -> None:  # fmt: skip
        self.host = host
        self.disk = disk
        self.peers = BlockSet()
        self.recorder = recorder or Recorder()
        self.flights = Flights()  # what is on its way
        self._finder = Finder(host, disk, self.peers, self.flights.arriving)
        made = (limits, self.flights.arriving, self.recorder, admission)
        self._writes = None if disk is None else WriteThrough(host, disk, *made)
        self._open_hits: set[int] = set()
        self.told = Telling()
        self._pools = [host] if disk is None else [host, disk]
        self._disk_slots = None if disk is None else DiskSlots(disk, self.told)
        waiting = () if self._writes is None else self._writes
        gauges = Gauges(self._pools, self.flights.in_flight, waiting, self.peers, self._n_empty, block_bytes)
        self.recorder.watch(gauges.read)

    # -- loading ------------------------------------------------------------------------------------

    def lookup(self, chain: HashChain, start: int) -> Lookup:
        """The longest run of blocks from `start` that can be loaded, leased."""
        spans = self._finder.find(chain, start)
        end = start + sum(len(span.keys) for span in spans)
        hit = Hit(start, tuple(spans), lambda hit: self._open_hits.discard(id(hit)))
        if end < len(chain.hashes) and self.flights.is_bringing(chain.hashes[end]):
            hit.release()
            return Pending(chain.hashes[end])
        if not spans:
            return Miss()
        self._open_hits.add(id(hit))
        return hit

    def onboard(self, hit: Hit, pages: Sequence[PageRun]) -> Onboard:
        """Load the hit's blocks into device pages, one run per block. Consumes the hit."""
        transfers, at = list[Transfer](), 0
        for span in hit.spans:
            runs = tuple(pages[at : at + len(span.keys)])
            at += len(span.keys)
            if span.tier is TierKind.HOST:
                where, reads = span.slots, [span.lease]
                load = self.flights.launch(Route.HOST_TO_DEVICE, span.keys, sources=where, pages=runs, reads=reads)
                transfers.append(load.transfer)
            else:
                transfers += self._load_disk(span, runs)
        self._open_hits.discard(id(hit))
        self.told.used(hit.spans)
        return Onboard(tuple(transfers), frozenset(transfer.id for transfer in transfers if transfer.pages))

    # -- keeping ------------------------------------------------------------------------------------

    def offload(self, filled: Iterable[Filled]) -> list[Transfer]:
        """Stage blocks from the device, all of a step together, and write them through to disk.

        A block that is in host memory, or on its way there, is not staged again.
        """
        wanted, here = _apart(filled, self.host, self.flights.arriving)
        if self._writes is not None:
            self._writes.queue(list(here.values()))
        with self.host.match(list(here)):  # not evicted to make room for what comes behind them
            lease = self._allocate_host(len(wanted))
        staged = list(wanted.values())[: len(lease)]
        if not staged:
            lease.discard()
            return []
        blocks = tuple(chain.block(index) for chain, index, _ in staged)
        keys = tuple(block.key for block in blocks)
        self.host.apply(lease, keys)
        slots, runs = tuple(lease.slots), tuple(run for _, _, run in staged)
        stage = self.flights.launch(Route.DEVICE_TO_HOST, keys, targets=slots, pages=runs, blocks=blocks, fills=lease)
        write = self._writes.admit(keys, slots) if self._writes is not None else None
        if write is None:
            return [stage.transfer]
        return [stage.transfer, self._write(write, after=stage)]

    def pump(self) -> list[Transfer]:
        """Write-through transfers for which there is room now."""
        transfers: list[Transfer] = []
        while self._writes is not None and (write := self._writes.next()) is not None:
            transfers.append(self._write(write))
        return transfers

    # -- results ------------------------------------------------------------------------------------

    def complete(self, result: TransferResult) -> Transfer:
        """Take in how a transfer ended on all ranks; the transfer."""
        flight = self.flights.land(result.transfer_id)
        transfer = flight.transfer
        record_result(self.recorder, transfer, result)
        match transfer.route:
            case Route.DEVICE_TO_HOST | Route.DISK_TO_HOST:
                self._arrived(flight, result, self.host, TierKind.HOST)
            case Route.HOST_TO_DISK:
                assert self.disk is not None
                assert self._writes is not None
                self._arrived(flight, result, self.disk, TierKind.DISK)
                self._writes.ended(transfer.keys)
            case Route.HOST_TO_DEVICE | Route.DISK_TO_DEVICE:
                self.flights.give_up_on(transfer.keys[index] for index in result.failed)
        self._forget_lost(transfer, result)
        for lease in flight.reads:
            lease.release()
        if flight.spoilt is not None:
            flight.spoilt.discard()
        return transfer

    def take_facts(self) -> list[Fact]:
        """Facts since the last call, in order."""
        return self.told.take()

    # -- whole tiers --------------------------------------------------------------------------------

    def resize_disk(self, n_slots: int, *, is_growing: bool, n_blocks: int | None = None) -> None:
        """All ranks have `n_slots` disk slots, `n_blocks` of which (None: all) may hold blocks at once.

        `is_growing` when more may come.
        """
        assert self._disk_slots is not None
        assert self._writes is not None
        self._disk_slots.resize(n_slots, n_blocks)
        self._writes.is_growing = is_growing

    def use_disk(self, *, read: bool, write: bool) -> None:
        """Whether the disk tier is looked at, and written to, from now on."""
        if self._writes is not None:
            self._finder.uses_disk, self._writes.is_enabled = read, write

    def restore_disk(self, entries: Sequence[tuple[int, BlockKey]], volume: str = "") -> None:
        """Blocks found on every rank, oldest first: in our disk slots, or on `volume`, which is another engine's."""
        if volume:
            self.peers.add(volume, entries)
        elif self._disk_slots is not None:
            self._disk_slots.restore(entries)

    def disk_changed(self, moved: Iterable[tuple[BlockKey, str]], lost: Sequence[BlockHash]) -> None:
        """Disk blocks lie on other volumes now on every rank, and some are gone, without our doing."""
        if self._disk_slots is not None:
            self._disk_slots.changed(moved, lost)

    def reset(self) -> None:
        """Forget every block; what is on its way is dropped when it arrives."""
        self.flights.generation += 1
        self.host.reset()
        self.told.cleared(TierKind.HOST)
        self.peers.clear()
        if self.disk is not None and self._writes is not None:
            self.disk.reset()
            self.told.cleared(TierKind.DISK)
            self._writes.reset()

    @property
    def has_pending(self) -> bool:
        """Whether transfers are on their way, or wait to be sent."""
        return bool(self.flights or self._writes)

    def statistics(self) -> dict[str, int]:
        """All counters and gauges by their keys in `metrics.TABLE`, and "flights": transfers on their way."""
        return self.recorder.snapshot().flat() | {"flights": len(self.flights)}

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        self.flights.check()
        for pool in self._pools:
            pool.check()
            is_idle = not self.flights and not self._open_hits
            if is_idle and pool.statistics().leased > self._n_empty(pool):
                raise InvariantError(f"{pool!r} has leases, but nothing is on its way")

    def __repr__(self) -> str:
        return f"<BlockManager {self.host!r} {self.disk!r} {len(self.flights)} in flight>"

    # -- inside -------------------------------------------------------------------------------------

    def _n_empty(self, pool: Pool) -> int:
        """Slots of a pool that are kept empty."""
        return self._disk_slots.n_empty if self._disk_slots is not None and pool is self.disk else 0

    def _load_disk(self, span: Span, pages: tuple[PageRun, ...]) -> list[Transfer]:
        """Through host memory, where the blocks stay; straight, when there is no room or they came there meanwhile."""
        is_here = any(key.hash in self.host or key.hash in self.flights.arriving for key in span.keys)
        answer = Full(0) if is_here else self.host.allocate(len(span.keys))
        if isinstance(answer, Full):
            direct = self.flights.launch(
                Route.DISK_TO_DEVICE, span.keys, sources=span.slots, pages=pages, volume=span.volume, reads=[span.lease]
            )
            return [direct.transfer]
        self.told.removed(TierKind.HOST, answer.evicted)
        self.host.apply(answer.lease, span.keys)
        slots = tuple(answer.lease.slots)
        bring = self.flights.launch(
            Route.DISK_TO_HOST, span.keys, sources=span.slots, targets=slots, volume=span.volume,
            reads=[span.lease], fills=answer.lease, known=span.token_blocks,
        )  # fmt: skip
        load = self.flights.launch(Route.HOST_TO_DEVICE, span.keys, sources=slots, pages=pages, after=bring)
        return [bring.transfer, load.transfer]

    def _write(self, write: PlannedWrite, after: Flight | None = None) -> Transfer:
        self.told.removed(TierKind.DISK, write.evicted)
        flight = self.flights.launch(
            Route.HOST_TO_DISK, write.keys, sources=write.host_slots, targets=tuple(write.lease.slots),
            after=after, reads=[write.reads], fills=write.lease,
        )  # fmt: skip
        return flight.transfer

    def _allocate_host(self, n: int) -> WritableLease:
        """As many of `n` slots as there are to be had."""
        answer = self.host.allocate(n)
        if isinstance(answer, Full):
            self.recorder.add(SKIPPED_BLOCKS, n - answer.available, "host_full")
            answer = self.host.allocate(answer.available)
        assert isinstance(answer, Allocated)
        self.told.removed(TierKind.HOST, answer.evicted)
        return answer.lease

    def _arrived(self, flight: Flight, result: TransferResult, pool: Pool, tier: TierKind) -> None:
        """Register what arrived whole, or drop it at once when the cache was reset meanwhile."""
        assert flight.fills is not None
        spoilt = flight.fills.split(result.failed) if result.failures else None
        registered = pool.register(flight.fills)
        if flight.generation != self.flights.generation:
            pool.invalidate([key.hash for key in registered.new])
        elif registered.new:
            self.told.stored(tier, new := tuple(registered.new), flight.blocks_of(new))
        if flight.follower is not None and not flight.follower.has_landed:
            flight.follower.reads.append(registered.lease)
            flight.follower.spoilt = spoilt
        else:
            registered.lease.release()
            if spoilt is not None:
                spoilt.discard()

    def _forget_lost(self, transfer: Transfer, result: TransferResult) -> None:
        """Blocks whose stored copy is worthless leave the tier the transfer read from."""
        hashes = [transfer.keys[f.index].hash for f in result.failures if f.cause.is_loss]
        if transfer.route in (Route.DISK_TO_HOST, Route.DISK_TO_DEVICE):
            for block in hashes:
                self.peers.forget(block)
            if self.disk is not None and not transfer.volume:
                self.told.removed(TierKind.DISK, self.disk.invalidate(hashes))
        elif transfer.route is Route.HOST_TO_DEVICE and not transfer.after:  # else its source failed before
            self.told.removed(TierKind.HOST, self.host.invalidate(hashes))


_Wanted = dict[BlockHash, tuple[HashChain, int, PageRun]]


def _apart(
    filled: Iterable[Filled], host: Pool, arriving: Container[BlockHash]
) -> tuple[_Wanted, dict[BlockHash, BlockKey]]:
    """(blocks to be staged, those that are in host memory): each once, whoever has filled it too."""
    wanted: _Wanted = {}
    here: dict[BlockHash, BlockKey] = {}
    for chain, start, pages in filled:
        for index, run in enumerate(pages, start):
            block = chain.hashes[index]
            if block in host:
                here[block] = chain.key(index)
            elif block not in arriving:
                wanted.setdefault(block, (chain, index, run))
    return wanted, here
