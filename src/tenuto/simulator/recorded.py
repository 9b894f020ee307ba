"""A manager that writes down what it is told and what it decides.

A recording is JSON lines. The first says what was recorded: `tenuto_recording` (the version), capacities, policies.
Each later one is what happened since the one before: `t` (seconds) and `ops`, lists whose first item names them:

    c chain, root            a new chain: its number, and what its first block's parent is
    x chain, hashes          blocks that it has grown by
    l chain, start, found    a lookup: found is [] (a miss), "pending", or [[place, blocks], ...]: hit number 0, 1, ...
    t hit, blocks            a hit was cut to so many blocks
    r hit / o hit            a hit was given back / is loaded
    f [[chain, start, n]]    blocks to keep
    m                        room for writes was looked for
    d transfer, [[i, cause]] a transfer ended, and what of it failed
    e tier, hashes           blocks that were evicted or lost since the last one
    s n, growing             the disk has n slots
    u read, write            whether the disk is used
    i blocks, volume         what was found on disk, or in another engine's volume
    z                        everything is forgotten

Hashes are base64 of all of them together.
"""

from __future__ import annotations

from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from tenuto.manager import BlockManager, Filled, Hit, Lookup, Onboard, Pending
from tenuto.memory.pages import PageRun
from tenuto.pools.facts import Fact, Removed
from tenuto.tokens import BlockHash, BlockKey, HashChain
from tenuto.transfers.plan import Transfer, TransferResult

VERSION = 1
_MOST_CHAINS = 4096  # remembered; one that was forgotten is told anew

Entries = Sequence[tuple[int, BlockKey]]


class _RecordedHit(Hit):
    """A hit that tells when it is cut or given back."""

    __slots__ = ("number", "tell")

    number: int
    tell: Callable[..., None]

    def trim(self, n_blocks: int) -> list[tuple[str, int]]:
        """See `Hit`."""
        self.tell("t", self.number, n_blocks)
        return Hit.trim(self, n_blocks)

    def release(self) -> None:
        """See `Hit`."""
        self.tell("r", self.number)
        Hit.release(self)


class RecordedManager(BlockManager):
    """Tells `sink` a line whenever room for writes was looked for or facts were taken; once a step each."""

    def record(self, sink: Callable[[bytes], None], clock: Callable[[], float], header: dict[str, Any]) -> None:
        """Begin; `header`: what the recording is of, beside its version. Must be called before anything else."""
        self._sink: Callable[[bytes], None] | None = sink
        self._seconds = clock
        self._ops: list[tuple[Any, ...]] = []
        self._chains: OrderedDict[int, tuple[HashChain, int, int]] = OrderedDict()
        self._n_chains = self._n_hits = 0
        self._uses = (True, True)
        sink(msgspec.json.encode({"tenuto_recording": VERSION, **header}))

    def stop_recording(self) -> None:
        """Nothing more is told."""
        self._sink = None
        self._ops.clear()
        self._chains.clear()

    def lookup(self, chain: HashChain, start: int) -> Lookup:
        """See `BlockManager`."""
        number = self._chain(chain)
        found = super().lookup(chain, start)
        if not isinstance(found, Hit):
            self._note("l", number, start, "pending" if isinstance(found, Pending) else [])
            return found
        self._note("l", number, start, [(span.place, len(span.keys)) for span in found.spans])
        hit = _RecordedHit(found.start, found.spans, found._closed)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        hit.number, hit.tell = self._n_hits, self._note
        self._n_hits += 1
        self._open_hits.discard(id(found))
        self._open_hits.add(id(hit))
        return hit

    def onboard(self, hit: Hit, pages: Sequence[PageRun]) -> Onboard:
        """See `BlockManager`."""
        if isinstance(hit, _RecordedHit):
            self._note("o", hit.number)
        return super().onboard(hit, pages)

    def offload(self, filled: Iterable[Filled]) -> list[Transfer]:
        """See `BlockManager`."""
        all_filled = list(filled)
        self._note("f", [(self._chain(chain), start, len(pages)) for chain, start, pages in all_filled])
        return super().offload(all_filled)

    def pump(self) -> list[Transfer]:
        """See `BlockManager`."""
        if self._writes:
            self._note("m")
        transfers = super().pump()
        self._flush()
        return transfers

    def complete(self, result: TransferResult) -> Transfer:
        """See `BlockManager`."""
        self._note("d", result.transfer_id, [(failure.index, failure.cause.value) for failure in result.failures])
        return super().complete(result)

    def take_facts(self) -> list[Fact]:
        """See `BlockManager`."""
        facts = super().take_facts()
        for fact in facts:
            if isinstance(fact, Removed):
                self._note("e", fact.tier.value, packed([key.hash for key in fact.keys]))
        self._flush()
        return facts

    def resize_disk(self, n_slots: int, *, is_growing: bool, n_blocks: int | None = None) -> None:
        """See `BlockManager`."""
        self._note("s", n_slots, is_growing, n_blocks)
        super().resize_disk(n_slots, is_growing=is_growing, n_blocks=n_blocks)

    def disk_changed(self, moved: Iterable[tuple[BlockKey, str]], lost: Sequence[BlockHash]) -> None:
        """See `BlockManager`."""
        news = list(moved)
        self._note("v", [(packed(key), volume) for key, volume in news], packed(lost))
        super().disk_changed(news, lost)

    def use_disk(self, *, read: bool, write: bool) -> None:
        """See `BlockManager`."""
        if (read, write) != self._uses:
            self._uses = (read, write)
            self._note("u", read, write)
        super().use_disk(read=read, write=write)

    def restore_disk(self, entries: Entries, volume: str = "") -> None:
        """See `BlockManager`."""
        self._note("i", _entries(entries), volume)
        super().restore_disk(entries, volume)

    def reset(self) -> None:
        """See `BlockManager`."""
        self._note("z")
        super().reset()

    def _note(self, *op: Any) -> None:
        if self._sink is not None:
            self._ops.append(op)

    def _flush(self) -> None:
        if self._ops and self._sink is not None:
            ops, self._ops = self._ops, []
            self._sink(msgspec.json.encode({"t": round(self._seconds(), 4), "ops": ops}))

    def _chain(self, chain: HashChain) -> int:
        """The chain's number; what is new of it is told."""
        if self._sink is None:
            return 0
        _, number, n_told = self._chains.pop(id(chain), (chain, -1, 0))
        if number < 0:
            number, self._n_chains = self._n_chains, self._n_chains + 1
            self._note("c", number, packed([chain.root]))
        if len(chain.hashes) > n_told:
            self._note("x", number, packed(chain.hashes[n_told:]))
        self._chains[id(chain)] = chain, number, len(chain.hashes)
        if len(self._chains) > _MOST_CHAINS:
            self._chains.popitem(last=False)
        return number


def packed(hashes: Sequence[BlockHash]) -> str:
    """Hashes as text."""
    return b64encode(b"".join(hashes)).decode()


def _entries(entries: Entries) -> list[tuple[int, str]]:
    return [(slot, packed([key.hash, key.parent, key.prefix])) for slot, key in entries]
