"""Read every listed block again and check its sums, beside engines that may be writing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from tenuto.cli.inspect.survey import Model, RankFolder, Root
from tenuto.errors import Cause, StoreError
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.tiers.disk.files import PoolFiles, error_of
from tenuto.tiers.disk.listing import Listing, Row, read_listing
from tenuto.tiers.disk.runtime import IoRequest, Memory, Op, RuntimeSettings, move
from tenuto.tiers.disk.slotmap import SlotMap
from tenuto.tiers.disk.store import open_files
from tenuto.tokens import Namespace

N_THREADS = 4
BATCH_BYTES = 256 << 20
"""Memory for blocks on their way, at most; one block, where that is larger."""

Moved = Callable[[int], None]
"""Told the bytes that were read."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A listed block that can't be served. `rank`: its folder under the root."""

    rank: Path
    slot: int
    hash: str
    cause: Cause
    message: str


@dataclass(slots=True)
class Verdict:
    """`n_rewritten`: read while their owner gave the slot to another block; neither good nor bad."""

    n_good: int = 0
    n_rewritten: int = 0
    bad: list[Bad] = field(default_factory=list[Bad])
    unread: list[str] = field(default_factory=list[str])
    """Folders whose blocks can't be told; one line each."""

    @property
    def is_good(self) -> bool:
        """Nothing is lost."""
        return not self.bad and not self.unread


def verify(root: Root, moved: Moved) -> Verdict:
    """Read all blocks that `root` listed."""
    verdict = Verdict(unread=list(root.stripes.faults))
    for model in root.models:
        verdict.unread += model.unread
        for rank in model.ranks:
            where = rank.folder.relative_to(root.folder)
            if rank.is_unreadable:
                verdict.unread.append(f"{where}: {rank.fault}")
            elif rank.listing is not None and rank.listing.rows and not root.stripes.faults:
                try:
                    reader = _Reader(rank, model, rank.listing)
                except StoreError as error:
                    verdict.unread.append(f"{where}: {error}")
                    continue
                with closing(reader):
                    suspects = dict(reader.failures(moved))
                n_moved = _drop_rewritten(rank, suspects)
                verdict.n_rewritten += n_moved
                verdict.n_good += rank.n_blocks - n_moved - len(suspects)
                verdict.bad += [
                    Bad(where, row.slot, row.key.hash.hex(), error.cause, str(error)) for row, error in suspects.items()
                ]
    return verdict


class _Reader:
    """Reads the blocks of one rank folder, a batch at a time."""

    def __init__(self, rank: RankFolder, model: Model, listing: Listing) -> None:
        """Raises `StoreError` (CORRUPT) when it can't be told how its blocks are laid out."""
        if model.namespace is None:
            raise StoreError(Cause.CORRUPT, model.notes[0])
        self._layout = _layout(model.namespace, listing)
        self._namespace = model.namespace
        self._rows = listing.rows
        self._slots = SlotMap(listing.files)
        self._codecs: dict[int, ExtentCodec] = {}
        self._arena = HostArena(max(1, min(2 * N_THREADS, BATCH_BYTES // self._layout.extent_bytes)),
                                self._layout.extent_bytes)  # fmt: skip
        self._runtime = open_files(rank.homes, RuntimeSettings(n_threads=N_THREADS))
        self._region = self._runtime.register_memory(Memory.of(self._arena.view))
        self._files = PoolFiles(self._runtime, rank.name, is_writable=False)

    def failures(self, moved: Moved) -> Iterator[tuple[Row, StoreError]]:
        """Every row whose extent is not whole, and why."""
        for rows in _batches(self._rows, self._arena.n_slots):
            requests: dict[Row, IoRequest] = {}
            for at, row in enumerate(rows):
                try:
                    requests[row] = self._request(row, at)
                except StoreError as error:
                    yield row, error
            states = move(self._runtime, list(requests.values()))
            moved(len(rows) * self._layout.extent_bytes)
            for row, state in zip(requests, states, strict=True):
                if (error := error_of(state, self._layout.extent_bytes)) is not None:
                    yield row, error

    def close(self) -> None:
        """End the threads and close the files."""
        self._files.close()
        self._runtime.close()

    def _request(self, row: Row, at: int) -> IoRequest:
        """To read a row's extent into slot `at`, and to verify it."""
        number, index = self._slots.place(row.slot)
        n_bytes = self._layout.extent_bytes
        verify = partial(self._codec(row.epoch).verify, self._arena.slot(at), row.key.hash)
        return IoRequest(
            Op.READ, self._files.file(number), index * n_bytes, self._region, at * n_bytes, n_bytes, verify
        )

    def _codec(self, epoch: int) -> ExtentCodec:
        if epoch not in self._codecs:
            self._codecs[epoch] = ExtentCodec(self._layout, self._namespace.at_epoch(epoch).digest)
        return self._codecs[epoch]


def _drop_rewritten(rank: RankFolder, suspects: dict[Row, StoreError]) -> int:
    """Take out of `suspects` what is not listed any more as it was; how many.

    A slot is unlisted before it is written again, so a block read half-way through that is not in the manifest now.
    """
    if not suspects:
        return 0
    try:
        still = set(read_listing(rank.folder).rows)
    except StoreError as error:
        if error.cause is not Cause.MISSING:
            return 0
        still = set[Row]()  # the folder went, with all its blocks
    gone = suspects.keys() - still
    for row in gone:
        del suspects[row]
    return len(gone)


def _layout(namespace: Namespace, listing: Listing) -> ExtentLayout:
    """The geometry of a folder's extents. Raises `StoreError` (CORRUPT) when manifest and identity disagree."""
    try:
        layers, heads = (_span(listing.meta[name]) for name in ("layers", "heads"))
        layout = ExtentLayout(
            namespace.block_tokens, layers, heads, namespace.k_dim, namespace.v_dim,
            Dtype[namespace.kv_dtype.upper()], namespace.group,
        )  # fmt: skip
        if layout.n_layers > 0 and layout.n_heads > 0 and listing.meta["extent_bytes"] == str(layout.extent_bytes):
            return layout
    except (KeyError, ValueError):
        pass
    raise StoreError(Cause.CORRUPT, "manifest: its geometry is not the model's")


def _span(text: str) -> tuple[int, int]:
    start, _, stop = text.partition(":")
    return int(start), int(stop)


def _batches(rows: Sequence[Row], n: int) -> Iterator[list[Row]]:
    left = iter(rows)
    while batch := list(islice(left, n)):
        yield batch
