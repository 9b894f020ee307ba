"""The memory that extents are read into and written from, as a runtime has it registered."""

from __future__ import annotations

import logging

from tenuto.errors import StoreError
from tenuto.tiers.disk.runtime import Memory, Region, StorageRuntime
from tenuto.tiers.disk.runtime.contract import address_of

logger = logging.getLogger(__name__)


class Buffers:
    """An arena that is registered once; what does not lie in it is registered for as long as it is used."""

    def __init__(self, runtime: StorageRuntime) -> None:
        self._runtime = runtime
        self._arena: Region | None = None

    def attach(self, arena: memoryview) -> None:
        """Register the memory that buffers will lie in; where that can't be, they are registered one by one."""
        try:
            self._arena = self._runtime.register_memory(Memory.of(arena))
        except StoreError as error:
            logger.warning("tenuto: %s: host memory is registered with each block: %s", self._runtime.caps.name, error)

    def detach(self) -> None:
        """Give it up again, if there is one. Not while one of its buffers is in use."""
        arena, self._arena = self._arena, None
        if arena is not None:
            self._runtime.unregister_memory(arena)

    def use(self, buffer: memoryview) -> tuple[Region, int]:
        """What a buffer is registered as, and where it begins there; `release` it. Raises `StoreError`."""
        address, arena = address_of(buffer), self._arena
        if arena is not None:
            at = address - arena.memory.address
            if 0 <= at <= arena.memory.n_bytes - len(buffer):
                return arena, at
        return self._runtime.register_memory(Memory(address, len(buffer), buffer=buffer)), 0

    def release(self, region: Region) -> None:
        """A buffer is used no more."""
        if region is not self._arena:
            self._runtime.unregister_memory(region)
