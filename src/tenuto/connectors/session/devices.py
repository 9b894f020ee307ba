"""The worker's host arena, and how its blocks cross between that and the engine's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenuto.config import parse_size
from tenuto.connectors.session.setup import Setup
from tenuto.errors import ConfigError
from tenuto.memory.arena import HostArena
from tenuto.memory.paged import ArenaView, PagedKV
from tenuto.transfers.lanes import Device
from tenuto.transfers.lanes.cpu import CpuDevice

if TYPE_CHECKING:
    from tenuto.memory.driver import CudaDriver
    from tenuto.transfers.lanes.cuda import RingSizes

_SHARE_OF_FREE = 4
"""An "auto" ring takes at most one part in so many of the GPU memory that is free."""


def make_driver(device: torch.device) -> CudaDriver | None:
    """The driver of the GPU that the engine's memory is in; None on the CPU.

    Raises `ConfigError` for memory that we can't move, and where CUDA's driver is missing.
    """
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise ConfigError(
            f"the engine's KV cache is in memory of the kind {device.type!r}, and blocks are moved from and to "
            "cpu and cuda alone; run the engine on one of these, or without TenutoConnector"
        )
    from tenuto.memory.driver import CudaDriver

    return CudaDriver()


def make_arena(kv: PagedKV, n_slots: int, driver: CudaDriver | None) -> HostArena:
    """Host memory for extents of `kv`, pinned where there is a driver. Raises `ConfigError` when it can't be had."""
    if driver is None:
        return HostArena(n_slots, kv.layout.extent_bytes)
    from tenuto.memory.pinning import pinned_arena

    return pinned_arena(n_slots, kv.layout.extent_bytes, driver)


def make_device(setup: Setup, kv: PagedKV, arena: HostArena, driver: CudaDriver | None) -> Device:
    """For the memory that `kv` is in. Raises `ConfigError` when its rings don't fit."""
    if driver is None:
        return CpuDevice(kv, ArenaView(arena, setup.layout, kv.dtype))
    from tenuto.transfers.lanes.cuda import CudaDevice

    free_bytes, _ = torch.cuda.mem_get_info(kv.device)
    try:
        return CudaDevice(kv, arena, ring_sizes(setup, free_bytes), driver)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"tiers.device.load_ring: the staging rings can't be had ({str(error).splitlines()[0][:200]}); "
            "give less, or lower vLLM's gpu_memory_utilization"
        ) from None


def ring_sizes(setup: Setup, free_bytes: int) -> RingSizes:
    """What the settings say, on a GPU with so much memory free.

    An "auto" store ring holds what the largest step fills, in at most a quarter of what is free, but two windows.
    """
    from tenuto.transfers.lanes.cuda import RingSizes

    device = setup.config.tiers.device
    window_bytes = parse_size(device.window, "tiers.device.window")
    if device.store_ring == "auto":
        step_bytes = setup.max_step_tokens * setup.layout.extent_bytes // setup.layout.block_tokens
        store_bytes = max(2 * window_bytes, min(step_bytes, free_bytes // _SHARE_OF_FREE))
    else:
        store_bytes = parse_size(device.store_ring, "tiers.device.store_ring")
    return RingSizes(
        load_bytes=parse_size(device.load_ring, "tiers.device.load_ring"),
        store_bytes=store_bytes,
        window_bytes=window_bytes,
        load_programs=device.load_programs,
        store_programs=device.store_programs,
    )
