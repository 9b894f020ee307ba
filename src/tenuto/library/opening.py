"""Making a `KVCache` of a layout, memory and settings."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from tenuto.config import Config, parse_size
from tenuto.errors import ConfigError
from tenuto.events import BlockShape
from tenuto.events.feed import Feed, open_publisher, worker_name
from tenuto.library.below import TiersBelow
from tenuto.library.cache import KVCache
from tenuto.library.configuration import choose_policies, library_config
from tenuto.library.core import CacheCore
from tenuto.manager import BlockManager, Limits, inventory, make_admission
from tenuto.memory.allocators import Allocator, allocator_of
from tenuto.memory.arena import HostArena
from tenuto.memory.blocklayout import Layout
from tenuto.memory.blockmemory import BlockMemory
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import ExtentLayout
from tenuto.pools import Policy, Pool
from tenuto.pools.facts import TierKind
from tenuto.tiers.agent.agent import Identity
from tenuto.tiers.agent.tier import open_tier
from tenuto.tiers.sizes import N_BOUNCE, host_slots, max_writes
from tenuto.tokens import Namespace
from tenuto.transfers.engine import TransferEngine
from tenuto.transfers.lanes import Device
from tenuto.transfers.lanes.arrays import ArrayDevice
from tenuto.transfers.movers import Movers

if TYPE_CHECKING:
    from tenuto.memory.driver import CudaDriver


def open_cache(
    layout: Layout,
    *,
    model: str,
    buffer: Any = None,
    allocator: str | Allocator | None = None,
    settings: Mapping[str, Any] | None = None,
    policies: Mapping[str, str | Policy] | None = None,
) -> KVCache:
    """Device blocks of `layout`, in `buffer` or in memory of an `allocator`, with host memory and a disk below them.

    `model` is your own name for exactly the weights and the way that keys and values are computed by: blocks on disk
    are found again under the same name, dtype and sizes alone. `buffer`: see `BlockMemory`; it must live as long as the
    cache, and be no other's. `allocator`, where there is no `buffer`: "heap" (also with None), "shared", "pinned",
    "device", or your own.
    `settings`: as everywhere, nested or with dotted names: ``{"tiers.host.capacity": "1 GiB", "tiers.disk.path":
    "/var/cache/tenuto"}``; without a path there is no disk, and what only an engine uses is refused. ``{"config":
    "tenuto.toml"}`` reads them from a file, and what stands beside it goes first. Host memory is 4 GiB unless it is
    said. `policies` choose which block goes first on "device", "host" and "disk": an object that no other tier or cache
    has, or a name as of `tiers.host.policy`. Without: on the device the one used longest ago, below as the settings
    say.

    Raises `ConfigError`, one line for each setting that is wrong or can't be had here.
    """
    config = library_config(settings or {}, layout)
    if not (isinstance(model, str) and model and model.isprintable() and model == model.strip()):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"model: {model!r} is no name; give printable text that neither starts nor ends with a space")
    extent = layout.extent()
    # What is wrong is told before memory is taken.
    host_slots(config, extent.extent_bytes, "smaller page_tokens of the layout")
    if buffer is None:
        buffer = allocator_of("heap" if allocator is None else allocator).allocate(layout.buffer_bytes)
    elif allocator is not None:
        raise ConfigError("allocator: there is a buffer already; give one of the two")
    memory = BlockMemory(layout, buffer)
    namespace = _namespace(layout, extent, model)
    chosen = choose_policies(policies or {}, config)
    pool = Pool("device", layout.n_blocks, chosen["device"])
    driver = _driver_of(memory)
    with _context_of(memory), ExitStack() as undo:
        below = _open_below(config, pool, memory, namespace, driver, chosen, undo)
        undo.pop_all()
    return KVCache(CacheCore(memory, pool, below, namespace, config.runtime, list(chosen.values())))


def _namespace(layout: Layout, extent: ExtentLayout, model: str) -> Namespace:
    return Namespace(
        model, "library", f"named:{model}", layout.dtype, layout.dtype, "none", layout.page_tokens,
        layout.n_layers, 1, extent.k_dim, extent.v_dim,
    )  # fmt: skip


def _open_below(
    config: Config,
    pool: Pool,
    memory: BlockMemory,
    namespace: Namespace,
    driver: CudaDriver | None,
    policies: Mapping[str, Policy],
    undo: ExitStack,
) -> TiersBelow:
    """What it opens is closed by `undo`."""
    codec = ExtentCodec(memory.layout.extent(), namespace.digest)
    extent_bytes = codec.layout.extent_bytes
    n_host = host_slots(config, extent_bytes)
    has_disk = bool(config.tiers.disk.path)
    n_bounce = N_BOUNCE if has_disk else 0
    engine_id = f"library-{secrets.token_hex(8)}"
    me = Identity(namespace, worker_name(config.events, engine_id))
    store = open_tier(config.tiers.disk, codec, engine_id, me) if has_disk else None
    if store is not None:
        undo.callback(store.close)
    arena = _arena(n_host + n_bounce, extent_bytes, driver)
    undo.callback(arena.close)
    if store is not None:
        store.attach(arena.view)
    movers = Movers(arena, codec, _device(config, memory, arena, driver), store, n_bounce)
    n_writes = max_writes(config, extent_bytes)
    engine = TransferEngine(movers, load_timeout_s=config.runtime.load_timeout_s, max_queued_stores=4 * n_writes)
    undo.callback(engine.close)
    tiers = config.tiers
    disk = None if store is None else Pool("disk", policy=policies["disk"])
    host = Pool("host", n_host, policies["host"])
    manager = BlockManager(
        host, disk, Limits(max_writes=n_writes), block_bytes=extent_bytes,
        admission=make_admission(tiers.disk.admission, "tiers.disk.admission"),
    )  # fmt: skip
    feed = Feed(manager.take_facts)
    feed.publisher = open_publisher(
        config.events, engine_id, 0, namespace.digest, BlockShape(extent_bytes, codec.layout.block_tokens),
        lambda: inventory(
            manager.told.volumes, (TierKind.DEVICE, pool), (TierKind.HOST, host), (TierKind.DISK, disk)
        ),
        manager.recorder,
    )  # fmt: skip
    manager.told.tells_uses = feed.publisher is not None
    undo.callback(feed.close)
    return TiersBelow(
        pool, manager, engine, movers, arena, store, config.runtime, tiers.disk.poll_s, feed,
        is_disk_off=has_disk and store is None,
    )  # fmt: skip


def _driver_of(memory: BlockMemory) -> CudaDriver | None:
    """Of the GPU that the blocks are in; None on the CPU."""
    device = memory.torch_device
    if device is None:
        return None
    if device.type != "cuda":
        raise ConfigError(f"buffer: memory of the kind {device.type!r} can't be moved; give cpu or cuda memory")
    from tenuto.memory.driver import CudaDriver

    return CudaDriver()


def _context_of(memory: BlockMemory) -> AbstractContextManager[object]:
    """The GPU that the blocks are in is the current one: memory is pinned for it."""
    if memory.torch_device is None:
        return nullcontext()
    import torch

    return torch.cuda.device(memory.torch_device)


def _arena(n_slots: int, extent_bytes: int, driver: CudaDriver | None) -> HostArena:
    if driver is None:
        return HostArena(n_slots, extent_bytes)
    from tenuto.memory.pinning import pinned_arena

    return pinned_arena(n_slots, extent_bytes, driver)


def _device(config: Config, memory: BlockMemory, arena: HostArena, driver: CudaDriver | None) -> Device:
    if driver is None:
        return ArrayDevice(memory, arena)
    from tenuto.memory.formats import MLA, KvFormat
    from tenuto.memory.paged import PagedKV
    from tenuto.transfers.lanes.cuda import CudaDevice, RingSizes

    layout, device = memory.layout, config.tiers.device
    kv = PagedKV(
        memory.tensors(), layout.extent(), layout.page_tokens, MLA if layout.outer_dim == 1 else KvFormat("PKTHD")
    )
    ring_bytes = parse_size(device.load_ring, "tiers.device.load_ring")
    is_auto = device.store_ring == "auto"
    store_bytes = ring_bytes if is_auto else parse_size(device.store_ring, "tiers.device.store_ring")
    window_bytes = parse_size(device.window, "tiers.device.window")
    sizes = RingSizes(ring_bytes, store_bytes, window_bytes, device.load_programs, device.store_programs)
    return CudaDevice(kv, arena, sizes, driver)
