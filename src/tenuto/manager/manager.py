"""The block manager of one engine: host and disk pools, and what moves between them and the device."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from tenuto.errors import InvariantError
from tenuto.manager.blockset import BlockSet
from tenuto.manager.facts import Cleared, Fact, Removed, Stored, TierKind
from tenuto.manager.results import Flight, Hit, Limits, Lookup, Miss, Onboard, Pending, Span
from tenuto.pools import Allocated, Full, Lease, Pool, WritableLease
from tenuto.tokens import BlockHash, BlockKey, HashChain
from tenuto.transfers.plan import PageRun, Route, Transfer, TransferResult

_WRITE_BATCH = 16  # blocks of one write-through transfer, so that results come steadily


class BlockManager:
    """Sans-I/O, single-threaded. The caller runs the transfers and answers each with `complete`, once, in id order
    where one waits for another. Facts gather until `take_facts`.
    """

    def __init__(
        self, host: Pool, disk: Pool | None = None, limits: Limits | None = None
    ) -> None:
        self.host = host
        self.disk = disk
        self.peers = BlockSet()
        self.counters: Counter[str] = Counter()
        """Blocks, by what happened to them."""
        self.can_read_disk = disk is not None
        self.can_write_disk = disk is not None
        self._limits = limits or Limits()
        self._ids = itertools.count(1)
        self._flights: dict[int, Flight] = {}
        self._arriving: dict[BlockHash, int] = {}  # into host memory; at most once each
        self._writing: set[BlockHash] = set()  # to disk
        self._backlog: dict[BlockHash, BlockKey] = {}  # in order; to be written when there is room
        self._is_disk_growing = False
        self._generation = 0
        self._open_hits: set[int] = set()
        self._facts: list[Fact] = []

    # -- loading ------------------------------------------------------------------------------------

    def lookup(self, chain: HashChain, start: int, stop: int | None = None) -> Lookup:
        """The longest run of blocks from `start` that can be loaded, leased."""
        hashes = chain.hashes[:stop]
        self.host.match(hashes[:start]).release()  # what the device holds is recently used here too
        spans: list[Span] = []
        at = start
        while at < len(hashes):
            if hashes[at] in self._arriving:
                Hit(start, tuple(spans), lambda _: None).release()
                return Pending(self._arriving[hashes[at]])
            span = self._span(chain, hashes, at)
            if span is None:
                break
            spans.append(span)
            at += len(span.keys)
        if not spans:
            return Miss()
        hit = Hit(start, tuple(spans), lambda hit: self._open_hits.discard(id(hit)))
        self._open_hits.add(id(hit))
        return hit

    def onboard(self, hit: Hit, pages: Sequence[PageRun]) -> Onboard:
        """Load the hit's blocks into device pages, one run per block. Consumes the hit."""
        transfers: list[Transfer] = []
        at = 0
        for span in hit.spans:
            runs = tuple(pages[at : at + len(span.keys)])
            at += len(span.keys)
            if span.tier is TierKind.HOST:
                transfers.append(self._load_host(span, runs))
            else:
                transfers += self._load_disk(span, runs)
        self._open_hits.discard(id(hit))
        return Onboard(tuple(transfers), frozenset(t.id for t in transfers if t.pages))

    # -- keeping ------------------------------------------------------------------------------------

    def offload(
        self, chain: HashChain, start: int, stop: int, pages: Sequence[PageRun]
    ) -> list[Transfer]:
        """Stage blocks [start, stop) of the chain from the device, and write them through to disk.

        `pages` are those of block `start` and on. Blocks that are in host memory already are not staged again.
        """
        wanted: list[int] = []
        for index in range(start, stop):
            block = chain.hashes[index]
            if block in self.host:
                self._queue_write(chain.key(index))
            elif block not in self._arriving:
                wanted.append(index)
        lease, wanted = self._allocate_host(wanted)
        if lease is None:
            return []
        blocks = tuple(chain.block(index) for index in wanted)
        keys = tuple(block.key for block in blocks)
        self.host.apply(lease, keys)
        stage = Transfer(
            next(self._ids), Route.DEVICE_TO_HOST, keys, targets=tuple(lease.slots),
            pages=tuple(pages[index - start] for index in wanted), blocks=blocks,
        )  # fmt: skip
        flight = self._launch(stage, fills=lease)
        return [stage, *self._write_staged(flight)]

    def pump(self) -> list[Transfer]:
        """Write-through transfers for which there is room now."""
        transfers: list[Transfer] = []
        if self.disk is None or not self.can_write_disk:
            self._drop_backlog()
            return transfers
        while self._backlog and self._write_room() > 0:
            n = min(self._write_room(), _WRITE_BATCH)
            keys = self._next_writes(n)
            disk_lease = self._allocate_disk(keys)
            if disk_lease is None:
                if not self._is_disk_growing:
                    self._drop_backlog()
                break
            for key in keys:
                del self._backlog[key.hash]
            host_lease = self.host.match([key.hash for key in keys])
            transfers.append(self._write(keys, host_lease.slots, disk_lease, reads=[host_lease]))
        return transfers

    # -- results ------------------------------------------------------------------------------------

    def complete(self, result: TransferResult) -> None:
        """Take in how a transfer ended on all ranks."""
        flight = self._flights.pop(result.transfer_id)
        transfer = flight.transfer
        for failure in result.failures:
            self.counters[f"failed.{transfer.route.value}.{failure.cause.value}"] += 1
        self.counters[f"moved.{transfer.route.value}"] += len(transfer.keys) - len(result.failures)
        match transfer.route:
            case Route.DEVICE_TO_HOST | Route.DISK_TO_HOST:
                self._arrived(flight, result, self.host, TierKind.HOST)
                for key in transfer.keys:
                    del self._arriving[key.hash]
            case Route.HOST_TO_DISK:
                assert self.disk is not None
                self._arrived(flight, result, self.disk, TierKind.DISK)
                self._writing.difference_update(key.hash for key in transfer.keys)
            case Route.HOST_TO_DEVICE | Route.DISK_TO_DEVICE:
                pass
        self._forget_lost(transfer, result)
        for lease in flight.reads:
            lease.release()

    def route_of(self, transfer_id: int) -> Route:
        """The route of a transfer that is on its way."""
        return self._flights[transfer_id].transfer.route

    def take_facts(self) -> list[Fact]:
        """Facts since the last call, in order."""
        facts, self._facts = self._facts, []
        return facts

    # -- whole tiers --------------------------------------------------------------------------------

    def resize_disk(self, n_slots: int, *, is_growing: bool) -> None:
        """All ranks have `n_slots` disk slots; `is_growing` when more may come."""
        assert self.disk is not None
        self.disk.grow(n_slots)
        self._is_disk_growing = is_growing

    def restore_disk(self, entries: Sequence[tuple[int, BlockKey]]) -> None:
        """These blocks were found in our disk slots on every rank, oldest first."""
        assert self.disk is not None
        self.disk.restore(entries)
        self._tell_stored(TierKind.DISK, [key for _, key in entries])

    def reset(self) -> None:
        """Forget every block; what is on its way is dropped when it arrives."""
        self._generation += 1
        self.host.reset()
        self._facts.append(Cleared(TierKind.HOST))
        if self.disk is not None:
            self.disk.reset()
            self._facts.append(Cleared(TierKind.DISK))
        self.peers.clear()
        self._backlog.clear()

    @property
    def has_pending(self) -> bool:
        """Whether transfers are on their way, or wait to be sent."""
        return bool(self._flights or self._backlog)

    def statistics(self) -> dict[str, int]:
        """Counters, and what is where now, in blocks."""
        figures = dict(self.counters)
        for pool in filter(None, (self.host, self.disk)):
            s = pool.statistics()
            figures |= {
                f"{pool.name}.total": s.total, f"{pool.name}.registered": s.registered,
                f"{pool.name}.leased": s.leased, f"{pool.name}.evictions": s.evictions,
            }  # fmt: skip
        more = {"flights": len(self._flights), "backlog": len(self._backlog), "peers": len(self.peers)}
        return figures | more

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        for pool in filter(None, (self.host, self.disk)):
            pool.check()
            idle = not self._flights and not self._open_hits
            if idle and pool.statistics().leased:
                raise InvariantError(f"{pool!r} has leases, but nothing is on its way")
        arriving = {
            key.hash: flight.transfer.id
            for flight in self._flights.values()
            if flight.transfer.route in (Route.DEVICE_TO_HOST, Route.DISK_TO_HOST)
            for key in flight.transfer.keys
        }
        if arriving != self._arriving:
            raise InvariantError("blocks arriving in host memory do not match the transfers")

    def __repr__(self) -> str:
        return f"<BlockManager {self.host!r} {self.disk!r} {len(self._flights)} in flight>"

    # -- inside -------------------------------------------------------------------------------------

    def _span(self, chain: HashChain, hashes: list[BlockHash], at: int) -> Span | None:
        lease = self.host.match(hashes[at:])
        if len(lease):
            return Span(TierKind.HOST, tuple(self.host.keys(lease)), tuple(lease.slots), lease)
        lease.release()
        if not self.can_read_disk or self.disk is None:
            return None
        stop = next(
            (i for i in range(at, len(hashes)) if hashes[i] in self.host or hashes[i] in self._arriving),
            len(hashes),
        )
        lease = self.disk.match(hashes[at:stop])
        if len(lease):
            return Span(TierKind.DISK, tuple(self.disk.keys(lease)), tuple(lease.slots), lease)
        lease.release()
        places = list(
            itertools.takewhile(lambda place: place is not None, map(self.peers.find, hashes[at:stop]))
        )
        found = [place for place in places if place is not None]
        slots = [slot for volume, slot in itertools.takewhile(lambda p: p[0] == found[0][0], found)]
        if not slots:
            return None
        keys = tuple(chain.key(index) for index in range(at, at + len(slots)))
        return Span(TierKind.DISK, keys, tuple(slots), None, found[0][0])

    def _load_host(self, span: Span, pages: tuple[PageRun, ...]) -> Transfer:
        load = Transfer(
            next(self._ids), Route.HOST_TO_DEVICE, span.keys, sources=span.slots, pages=pages
        )
        self._launch(load, reads=_held(span))
        return load

    def _load_disk(self, span: Span, pages: tuple[PageRun, ...]) -> list[Transfer]:
        """Through host memory, where the blocks stay; straight, when there is no room."""
        answer = self.host.allocate(len(span.keys))
        if isinstance(answer, Full):
            direct = Transfer(
                next(self._ids), Route.DISK_TO_DEVICE, span.keys, sources=span.slots, pages=pages,
                volume=span.volume,
            )  # fmt: skip
            self._launch(direct, reads=_held(span))
            return [direct]
        self._tell_removed(TierKind.HOST, answer.evicted)
        lease = answer.lease
        self.host.apply(lease, span.keys)
        slots = tuple(lease.slots)
        bring = Transfer(
            next(self._ids), Route.DISK_TO_HOST, span.keys, sources=span.slots, targets=slots,
            volume=span.volume,
        )  # fmt: skip
        load = Transfer(
            next(self._ids), Route.HOST_TO_DEVICE, span.keys, sources=slots, pages=pages,
            after=(bring.id,),
        )  # fmt: skip
        flight = self._launch(bring, reads=_held(span), fills=lease)
        flight.follower = load.id
        self._launch(load)
        return [bring, load]

    def _launch(
        self, transfer: Transfer, reads: Iterable[Lease] = (), fills: WritableLease | None = None
    ) -> Flight:
        flight = Flight(transfer, self._generation, list(reads), fills)
        self._flights[transfer.id] = flight
        if transfer.route in (Route.DEVICE_TO_HOST, Route.DISK_TO_HOST):
            self._arriving.update((key.hash, transfer.id) for key in transfer.keys)
        return flight

    def _allocate_host(self, wanted: list[int]) -> tuple[WritableLease | None, list[int]]:
        """Slots for as many of the wanted blocks as there is room for, the first ones first."""
        answer = self.host.allocate(len(wanted))
        if isinstance(answer, Full):
            self.counters["skipped.host_full"] += len(wanted) - answer.available
            wanted = wanted[: answer.available]
            answer = self.host.allocate(len(wanted))
        assert isinstance(answer, Allocated)
        self._tell_removed(TierKind.HOST, answer.evicted)
        return (answer.lease, wanted) if wanted else (None, wanted)

    def _write_staged(self, stage: Flight) -> list[Transfer]:
        """Write what is being staged right behind it; what has no room now goes to the backlog."""
        keys, slots = stage.transfer.keys, stage.transfer.targets
        todo = [
            i for i, key in enumerate(keys)
            if self.disk is not None and key.hash not in self.disk and key.hash not in self._writing
        ]  # fmt: skip
        now = todo[: max(self._write_room(), 0)] if self.can_write_disk else []
        lease = self._allocate_disk([keys[i] for i in now]) if now else None
        if lease is None:
            now = []
        for i in todo[len(now) :]:
            self._queue_write(keys[i])
        if lease is None:
            return []
        write = self._write(
            [keys[i] for i in now], [slots[i] for i in now], lease, after=stage.transfer.id
        )
        stage.follower = write.id
        return [write]

    def _write_room(self) -> int:
        return self._limits.max_writes - len(self._writing)

    def _queue_write(self, key: BlockKey) -> None:
        if self.disk is None or not self.can_write_disk:
            return
        if key.hash in self.disk or key.hash in self._writing:
            return
        if len(self._backlog) >= self._limits.max_backlog:
            self.counters["skipped.backlog_full"] += 1
            return
        self._backlog[key.hash] = key

    def _next_writes(self, n: int) -> list[BlockKey]:
        """The first `n` of the backlog that are still in host memory; the others are dropped."""
        keys: list[BlockKey] = []
        gone: list[BlockHash] = []
        for block, key in self._backlog.items():
            if len(keys) == n:
                break
            if block in self.host:
                keys.append(key)
            elif block not in self._arriving:
                gone.append(block)
        for block in gone:
            del self._backlog[block]
        self.counters["skipped.left_host"] += len(gone)
        return keys

    def _allocate_disk(self, keys: Sequence[BlockKey]) -> WritableLease | None:
        """Disk slots for these blocks; a disk that still grows is not evicted from."""
        assert self.disk is not None
        if not keys:
            return None
        answer = self.disk.allocate(len(keys), evict=not self._is_disk_growing)
        if isinstance(answer, Full):
            return None
        self._tell_removed(TierKind.DISK, answer.evicted)
        self.disk.apply(answer.lease, keys)
        return answer.lease

    def _write(
        self, keys: Sequence[BlockKey], host_slots: Sequence[int], lease: WritableLease,
        after: int | None = None, reads: Iterable[Lease] = (),
    ) -> Transfer:  # fmt: skip
        write = Transfer(
            next(self._ids), Route.HOST_TO_DISK, tuple(keys), sources=tuple(host_slots),
            targets=tuple(lease.slots), after=() if after is None else (after,),
        )  # fmt: skip
        self._launch(write, reads=reads, fills=lease)
        self._writing.update(key.hash for key in keys)
        return write

    def _drop_backlog(self) -> None:
        self.counters["skipped.disk_off"] += len(self._backlog)
        self._backlog.clear()

    def _arrived(self, flight: Flight, result: TransferResult, pool: Pool, tier: TierKind) -> None:
        """Register what arrived whole, or drop it at once when the cache was reset meanwhile."""
        assert flight.fills is not None
        registered = pool.register(flight.fills, result.failed)
        if flight.generation != self._generation:
            pool.invalidate([key.hash for key in registered.new])
        else:
            self._tell_stored(tier, registered.new)
        follower = self._flights.get(flight.follower) if flight.follower else None
        if follower is not None:
            follower.reads.append(registered.lease)
        else:
            registered.lease.release()

    def _forget_lost(self, transfer: Transfer, result: TransferResult) -> None:
        """Blocks whose stored copy is worthless leave the tier the transfer read from."""
        lost = [transfer.keys[f.index] for f in result.failures if f.cause.is_loss]
        if not lost:
            return
        hashes = [key.hash for key in lost]
        if transfer.route in (Route.DISK_TO_HOST, Route.DISK_TO_DEVICE):
            for block in hashes:
                self.peers.forget(block)
            if self.disk is not None and not transfer.volume:
                self._tell_removed(TierKind.DISK, self.disk.invalidate(hashes))
        elif not transfer.after:  # what failed before it is not the host copy's fault
            self._tell_removed(TierKind.HOST, self.host.invalidate(hashes))

    def _tell_stored(self, tier: TierKind, keys: Sequence[BlockKey]) -> None:
        if keys:
            self._facts.append(Stored(tier, tuple(keys)))

    def _tell_removed(self, tier: TierKind, keys: Sequence[BlockKey]) -> None:
        if keys:
            self._facts.append(Removed(tier, tuple(keys)))


def _held(span: Span) -> list[Lease]:
    return [] if span.lease is None else [span.lease]
