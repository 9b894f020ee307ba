"""What a forward pass that loads and stores by layers needs: an engine's memory, host memory, a store, computing."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tenuto.cli.bench.computing import Computing, Products, Sleeping
from tenuto.config import Disk
from tenuto.connectors.session.devices import make_arena, make_driver
from tenuto.errors import ConfigError, InvariantError, TenutoError
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import ExtentLayout
from tenuto.memory.paged import ArenaView, PagedKV
from tenuto.memory.pages import PageRun
from tenuto.testing.kvshapes import Arrangement, Shape
from tenuto.testing.pacing import PacedStore
from tenuto.tiers.disk import DiskSettings, DiskStore
from tenuto.tiers.disk.instance import claim
from tenuto.tiers.disk.quota import Quota
from tenuto.tiers.store import Failure, SlotIO, Store
from tenuto.tokens import HashChain, Namespace, TokenBlock
from tenuto.transfers.lanes import Device
from tenuto.transfers.lanes.cpu import CpuDevice
from tenuto.transfers.layered import LayeredLoads, LayeredStores, plan_loads, plan_stores
from tenuto.transfers.parts import Parts
from tenuto.transfers.plan import Route, Transfer

MIB = 1 << 20
_READ, _LOAD, _STAGE, _WRITE = range(1, 5)
"""Transfers, one of each at a time."""
_TIMEOUT_S = 120.0
_JOIN_S = 5.0
_LOOK_S = 0.0005


@dataclass(frozen=True, slots=True)
class BedSizes:
    """`n_blocks` of one rank's KV. On the CPU their store is slowed, so that a layer of all of them takes `layer_s`."""

    shape: Shape
    arrangement: Arrangement
    n_blocks: int
    layer_s: float = 0.0

    @property
    def layer_bytes(self) -> int:
        """One layer of all blocks."""
        return self.n_blocks * self.shape.layout.segment_bytes


class Pages:
    """An engine's memory, random at first; page 0 is no block's."""

    def __init__(self, sizes: BedSizes, device: str) -> None:
        shape = sizes.shape
        per_block = shape.block_tokens // shape.page_tokens
        pages = list(range(1, sizes.n_blocks * per_block + 1))
        tensors = sizes.arrangement.random_tensors(shape, len(pages) + 1, device, seed=7)
        random.Random(4).shuffle(pages)
        self.runs = [PageRun(tuple(pages[at : at + per_block])) for at in range(0, len(pages), per_block)]
        """Where each block lies."""
        self.kv = PagedKV(tensors, shape.layout, shape.page_tokens, sizes.arrangement.kv_format)
        self._truth = [view.clone() for view in self._views()]

    def wipe(self) -> None:
        """All of it zero."""
        for view in self._views():
            view.zero_()

    def restore(self) -> None:
        """What it was at first."""
        for view, truth in zip(self._views(), self._truth, strict=True):
            view.copy_(truth)

    def expect(self, what: str) -> None:
        """Raise `InvariantError` unless it is what it was at first, bit for bit."""
        for view, truth in zip(self._views(), self._truth, strict=True):
            if not torch.equal(view, truth):
                raise InvariantError(f"bench layered: pages that were {what} differ from what was stored")

    def _views(self) -> Iterator[torch.Tensor]:
        return (view.view(torch.uint8)[:, 1:] for layer in self.kv.views for view in layer)


class Bed:
    """Blocks that a `DiskStore` holds and an engine's pages get; `n_layers` of computing beside it.

    A forward's time is in seconds, from the first call until all of it is computed. Loads begin with pages and host
    slots full of zeros, and every page is compared afterwards: what differs raises `InvariantError`, and a block that
    did not move `TenutoError`.
    """

    def __init__(self, work: Path, sizes: BedSizes, *, is_gpu: bool) -> None:
        self.sizes = sizes
        self.layout = layout = sizes.shape.layout
        self.n_layers = layout.n_layers
        self._pages = Pages(sizes, "cuda" if is_gpu else "cpu")
        self._slots = list(range(sizes.n_blocks))
        with ExitStack() as undo:
            self.arena, self.device = _crossing(self._pages.kv, sizes.n_blocks)
            undo.callback(self.arena.close)
            self.computing: Computing = Products() if is_gpu else Sleeping()
            namespace = _namespace(layout)
            self.codec = ExtentCodec(layout, namespace.digest)
            self.blocks, self._others = (_chain(namespace, sizes.n_blocks, seed) for seed in (0, 1))
            self.disk = _disk(work, namespace, self.codec, sizes)
            undo.callback(self.disk.close)
            self.store: Store = self.disk
            self._fill()
            if sizes.layer_s:
                bytes_s = sizes.layer_bytes / sizes.layer_s
                self.store = PacedStore(self.disk, layout, bytes_s, time.monotonic, time.sleep)
            parts = Parts(self.device, self.arena, self.codec, self.store)
            self.loads, self.stores = LayeredLoads(parts, timeout_s=_TIMEOUT_S), LayeredStores(parts)
            undo.callback(self.loads.close, _JOIN_S)
            undo.callback(self.stores.close, _JOIN_S)
            self._closing = undo.pop_all()

    # -- forward passes -----------------------------------------------------------------------------

    def compute(self) -> float:
        """Computing alone."""
        began = self._begin()
        for layer in range(self.n_layers):
            self.computing.compute(layer)
        self.computing.finish()
        return time.monotonic() - began

    def load_layered(self, *, computes: bool = True) -> float:
        """Loads under computing, or alone."""
        self._wipe()
        keys, slots = tuple(block.key for block in self.blocks), tuple(self._slots)
        read = Transfer(_READ, Route.DISK_TO_HOST, keys, slots, slots)
        load = Transfer(_LOAD, Route.HOST_TO_DEVICE, keys, slots, pages=tuple(self._pages.runs), after=(_READ,))
        plans, _ = plan_loads([read, load])
        began = self._begin()
        self.loads.begin(plans, self.device.mark())
        for layer in range(self.n_layers):
            self.loads.load_layer(layer)
            if computes:
                self.computing.compute(layer)
        failures = self.loads.end()
        self.computing.finish()
        took_s = time.monotonic() - began
        if failures:
            raise TenutoError(f"a block was not loaded by layers: {next(iter(failures.values()))}")
        self._wait(self.loads)
        self._pages.expect("loaded by layers")
        return took_s

    def load_first(self) -> tuple[float, float]:
        """All blocks whole, then computing: (until they are loaded, until all is computed)."""
        self._wipe()
        began = self._begin()
        mark = self.device.mark()
        _must_move(self.store.read(self._items(self.blocks)))
        self.device.scatter(self._pages.runs, self._slots, mark).wait()
        loaded_s = time.monotonic() - began
        for layer in range(self.n_layers):
            self.computing.compute(layer)
        self.computing.finish()
        took_s = time.monotonic() - began
        self._pages.expect("loaded whole")
        return loaded_s, took_s

    def store_layered(self, *, is_checking: bool = False) -> float:
        """Stores under computing, of other blocks than loads read unless they are to be checked.

        What the next forward would wait for, the reading of the pages, is in the time; the rest goes on behind it.
        """
        blocks, at = (self.blocks, 0) if is_checking else (self._others, len(self.blocks))
        keys, slots = tuple(block.key for block in blocks), tuple(self._slots)
        stage = Transfer(
            _STAGE, Route.DEVICE_TO_HOST, keys, targets=slots, pages=tuple(self._pages.runs), blocks=tuple(blocks)
        )
        disk_slots = tuple(at + slot for slot in slots)
        write = Transfer(_WRITE, Route.HOST_TO_DISK, keys, slots, disk_slots, after=(_STAGE,))
        plans, _ = plan_stores([stage, write])
        began = self._begin()
        self.stores.begin(plans)
        for layer in range(self.n_layers):
            self.computing.compute(layer)
            self.stores.store_layer(layer)
        self.stores.end()
        self.device.settle()
        self.computing.finish()
        took_s = time.monotonic() - began
        self._wait(self.stores)
        return took_s

    # -- the same bytes -----------------------------------------------------------------------------

    def check(self) -> None:
        """Written by layers and read whole, written whole and read by layers: the same pages, and the same extents."""
        self._wipe()
        self._pages.restore()
        self.store_layered(is_checking=True)
        self.load_first()
        by_layers = self._extents()
        self._wipe()
        self._pages.restore()
        self._gather(self.blocks)
        _must_move(self.store.write(self._items(self.blocks)))
        self.load_layered()
        if self._extents() != by_layers:
            raise InvariantError("an extent that was written by layers differs from the same block's written whole")

    def _extents(self) -> list[bytes]:
        return [bytes(self.arena.slot(slot)) for slot in self._slots]

    def _wipe(self) -> None:
        self._pages.wipe()
        np.frombuffer(self.arena.view, np.uint8)[:] = 0

    # -- pieces -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End threads, close the store, give the memory back."""
        if self._pages.kv.device.type == "cuda":
            torch.cuda.synchronize()
        self._closing.close()

    def _begin(self) -> float:
        self.computing.begin()
        return time.monotonic()

    def _wait(self, runner: LayeredLoads | LayeredStores) -> None:
        """For the results, all of which must be good."""
        while runner.n_pending():
            time.sleep(_LOOK_S)
        for result in runner.poll():
            if result.failures:
                raise TenutoError(f"a block did not move by layers: {result.failures[0]}")

    def _items(self, blocks: Sequence[TokenBlock], at: int = 0) -> list[SlotIO]:
        """The disk's slots from `at` on."""
        return [SlotIO(at + slot, blocks[slot].key, self.arena.slot(slot)) for slot in self._slots]

    def _gather(self, blocks: Sequence[TokenBlock]) -> None:
        """Pages into host slots, with headers."""
        self.device.gather(self._pages.runs, self._slots).wait()
        for slot, block in zip(self._slots, blocks, strict=True):
            self.codec.write_header(self.arena.slot(slot), block)

    def _fill(self) -> None:
        """Write every slot of the disk once, as it grows, and wait until it has grown enough to rest."""
        deadline = time.monotonic() + _TIMEOUT_S
        for blocks, at in ((self.blocks, 0), (self._others, len(self.blocks))):
            self._gather(blocks)
            left = self._items(blocks, at)
            while left:
                self._wait_slots(left[0].slot + 1, deadline)
                there = [item for item in left if item.slot < self.disk.capacity().n_slots]
                _must_move(self.disk.write(there))
                left = left[len(there) :]
        self._wait_slots(2 * len(self.blocks) + (self.disk.slots_per_file + 1) // 2, deadline)

    def _wait_slots(self, n_slots: int, deadline: float) -> None:
        while self.disk.capacity().n_slots < n_slots:
            if time.monotonic() > deadline:
                raise TenutoError(f"the disk store has not grown to {n_slots} blocks in {_TIMEOUT_S:.0f} s")
            time.sleep(0.01)


def _crossing(kv: PagedKV, n_slots: int) -> tuple[HostArena, Device]:
    """Host slots, and what moves bytes between them and the engine's memory."""
    driver = make_driver(kv.device)
    arena = make_arena(kv, n_slots, driver)
    if driver is None:
        return arena, CpuDevice(kv, ArenaView(arena, kv.layout, kv.dtype))
    from tenuto.cli.bench.device import RING
    from tenuto.transfers.lanes.cuda import CudaDevice

    return arena, CudaDevice(kv, arena, RING, driver)


def _namespace(layout: ExtentLayout) -> Namespace:
    dtype = layout.dtype.name.lower()
    return Namespace("bench", "", "", dtype, dtype, "", layout.block_tokens,
                     layout.layers[1], layout.n_heads, layout.k_dim, layout.v_dim)  # fmt: skip


def _chain(namespace: Namespace, n_blocks: int, seed: int) -> list[TokenBlock]:
    chain = HashChain(namespace.digest, namespace.block_tokens)
    chain.append_bytes(random.Random(seed).randbytes(4 * namespace.block_tokens * n_blocks))
    return [chain.block(index) for index in range(n_blocks)]


def _disk(work: Path, namespace: Namespace, codec: ExtentCodec, sizes: BedSizes) -> DiskStore:
    """With room for the blocks that are loaded, and as many that are stored. Raises `ConfigError` without space."""
    n_bytes = 2 * sizes.n_blocks * codec.layout.extent_bytes
    capacity_bytes = 3 * n_bytes // 2 + 64 * MIB
    free_bytes = shutil.disk_usage(work).free
    if free_bytes < 3 * capacity_bytes // 2:
        raise ConfigError(
            f"--dir: {free_bytes / 1e9:.1f} GB are free there, the bench needs {1.5 * capacity_bytes / 1e9:.1f} GB; "
            "give a folder on another disk, or --quick"
        )
    root = work / "tenuto"
    settings = DiskSettings(Quota(root, capacity_bytes), n_bytes // 16, Disk().io_threads or None)
    return DiskStore(claim(root, namespace, "bench", 0), codec, settings)


def _must_move(failures: Sequence[Failure]) -> None:
    if failures:
        raise TenutoError(f"a block did not move: {failures[0].message}")
