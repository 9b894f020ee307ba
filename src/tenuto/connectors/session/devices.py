"""The worker's host arena, and how its blocks cross between that and the engine's memory."""

from __future__ import annotations

from tenuto.config import parse_size
from tenuto.connectors.session.setup import Setup
from tenuto.memory.arena import HostArena
from tenuto.memory.paged import ArenaView, PagedKV
from tenuto.transfers.lanes import CpuDevice, Device

_SHARE_OF_FREE = 4
"""An "auto" ring takes at most one part in so many of the GPU memory that is free."""


def make_arena(kv: PagedKV, n_slots: int) -> HostArena:
    """Host memory for the extents of `kv`, pinned where that is on a GPU. Raises `ConfigError` when it can't be had."""
    if kv.device.type != "cuda":
        return HostArena(n_slots, kv.layout.extent_bytes)
    from tenuto.memory.driver import CudaDriver
    from tenuto.memory.pinning import pinned_arena

    return pinned_arena(n_slots, kv.layout.extent_bytes, CudaDriver())


def make_device(setup: Setup, kv: PagedKV, arena: HostArena) -> Device:
    """For the memory that `kv` is in. Raises `ConfigError` when its rings don't fit."""
    if kv.device.type != "cuda":
        return CpuDevice(kv, ArenaView(arena, setup.layout, kv.dtype))
    import torch

    from tenuto.memory.driver import CudaDriver
    from tenuto.transfers.lanes.cuda import CudaDevice, RingSizes

    device = setup.config.tiers.device
    window_bytes = parse_size(device.window, "tiers.device.window")
    if device.store_ring == "auto":
        token_bytes = setup.layout.extent_bytes / setup.layout.block_tokens
        free, _ = torch.cuda.mem_get_info(kv.device)
        store_bytes = max(2 * window_bytes, min(int(setup.max_step_tokens * token_bytes), free // _SHARE_OF_FREE))
    else:
        store_bytes = parse_size(device.store_ring, "tiers.device.store_ring")
    sizes = RingSizes(
        load_bytes=parse_size(device.load_ring, "tiers.device.load_ring"),
        store_bytes=store_bytes,
        window_bytes=window_bytes,
        load_programs=device.load_programs,
        store_programs=device.store_programs,
    )
    return CudaDevice(kv, arena, sizes, CudaDriver())
