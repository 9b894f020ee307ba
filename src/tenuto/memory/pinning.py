"""A host arena that a GPU copies from and into at the full rate of the wire, and that another process can map."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tenuto.errors import ConfigError
from tenuto.memory.arena import HostArena
from tenuto.memory.driver import DriverError
from tenuto.memory.mapping import Mapping, shared, shared_huge
from tenuto.memory.numa import Node, nearest_node
from tenuto.memory.progress import Progress
from tenuto.memory.registration import HostRegistrar, Registrations
from tenuto.memory.room import Room, free_memory

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 30
"""Registered at once, at least one slot: a piece ends with a slot, since a copy may not cross two registrations."""
KEPT_BYTES = 1 << 30
"""Memory that is left to everything else."""
_SLICE_BYTES = 32 << 20  # touched at once
_MAX_THREADS = 16
_LEAST_BYTES = _MAX_THREADS * _SLICE_BYTES  # what the threads may touch before one of them looks again
_CUDA_ERROR_OUT_OF_MEMORY = 2


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What pinning asks the machine; a test gives its own."""

    room: Callable[[], Room] = free_memory
    nearest_node: Callable[[str], Node | None] = nearest_node
    huge: Callable[[int], Mapping | None] = shared_huge
    progress: Callable[[str, int], Progress] = Progress
    piece_bytes: int = PIECE_BYTES


def pinned_arena(
    n_slots: int, extent_bytes: int, driver: HostRegistrar, surroundings: Surroundings | None = None
) -> HostArena:
    """An arena in shared memory, of huge pages where the kernel grants them, touched near the GPU and registered.

    Close it to unpin it. Call it on the thread whose current CUDA context is the GPU's. Raises `ConfigError`, with
    nothing left behind, when there is not that much memory or the driver refuses it.
    """
    around = surroundings or Surroundings()
    size_bytes = max(n_slots, 1) * extent_bytes
    pinning = _Pinning(n_slots, extent_bytes, driver, around)
    mapping = around.huge(size_bytes)
    if mapping is not None:
        try:
            return pinning.run(mapping)
        except OSError as error:
            logger.info("tenuto: host arena: huge pages are reserved and can't be had (%s): plain ones", error)
    _check_room(size_bytes, size_bytes + KEPT_BYTES, around.room())
    try:
        return pinning.run(shared(size_bytes))
    except OSError as error:
        raise ConfigError(
            f"tiers.host.capacity: {_gib(size_bytes)} can't be had ({error}); give less, or free some memory"
        ) from None


class _Pinning:
    """Touches a mapping by threads, and registers each piece behind them."""

    def __init__(self, n_slots: int, extent_bytes: int, driver: HostRegistrar, around: Surroundings) -> None:
        self._n_slots = n_slots
        self._extent_bytes = extent_bytes
        self._size_bytes = max(n_slots, 1) * extent_bytes
        self._driver = driver
        self._around = around
        self._node = _node_of(driver, around.nearest_node)

    def run(self, mapping: Mapping) -> HostArena:
        """The mapping as a pinned arena; closed when this raises. `OSError`: the kernel has no pages."""
        with contextlib.ExitStack() as undo:
            undo.callback(mapping.close)
            registrations = Registrations(self._driver)
            undo.callback(registrations.close)
            progress = self._around.progress("host arena", self._size_bytes)
            with contextlib.closing(progress), self._threads() as pool:
                slices = [
                    pool.submit(self._touch, mapping, start, min(_SLICE_BYTES, self._size_bytes - start))
                    for start in range(0, self._size_bytes, _SLICE_BYTES)
                ]
                for start, stop in cut_pieces(self._size_bytes, self._extent_bytes, self._around.piece_bytes):
                    self._register(mapping, start, stop, slices, registrations)
                    progress.advance(stop - start)
            arena = HostArena(self._n_slots, self._extent_bytes, mapping, registrations)
            undo.pop_all()
        logger.info(
            "tenuto: host arena: %s pinned in %.1f s%s%s",
            _gib(self._size_bytes), progress.elapsed_s,
            "" if self._node is None else f" on NUMA node {self._node.number}",
            ", huge pages" if mapping.is_huge else "",
        )  # fmt: skip
        return arena

    @contextlib.contextmanager
    def _threads(self) -> Generator[ThreadPoolExecutor]:
        cpus = os.sched_getaffinity(0) if self._node is None else self._node.cpus
        n_threads = min(len(cpus), _MAX_THREADS)
        pool = ThreadPoolExecutor(n_threads, "tenuto-touch", initializer=self._bind)
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _bind(self) -> None:
        """Memory comes from the node of the CPU that touches it first."""
        if self._node is not None:
            with contextlib.suppress(OSError):  # a container without these CPUs
                os.sched_setaffinity(0, self._node.cpus)

    def _touch(self, mapping: Mapping, start: int, size_bytes: int) -> None:
        if not mapping.is_huge:
            _check_room(self._size_bytes, _LEAST_BYTES, self._around.room())  # other engines may be starting too
        mapping.touch(start, size_bytes)

    def _register(
        self, mapping: Mapping, start: int, stop: int, slices: list[Future[None]], registrations: Registrations
    ) -> None:
        for touched in slices[start // _SLICE_BYTES : -(-stop // _SLICE_BYTES)]:
            touched.result()
        try:
            registrations.add(mapping.address + start, stop - start)
        except DriverError as error:
            fix = "give less, or end other programs that pin memory"
            if error.code != _CUDA_ERROR_OUT_OF_MEMORY:
                fix = "see `nvidia-smi` and the kernel's log, or give less"
            raise ConfigError(
                f"tiers.host.capacity: of {_gib(self._size_bytes)} the CUDA driver pinned {_gib(start)} and then "
                f"failed ({error}); {fix}"
            ) from None


def cut_pieces(size_bytes: int, extent_bytes: int, piece_bytes: int) -> list[tuple[int, int]]:
    """Byte ranges of whole slots, each of at most `piece_bytes` or one slot."""
    step = max(piece_bytes // extent_bytes, 1) * extent_bytes
    return [(start, min(start + step, size_bytes)) for start in range(0, size_bytes, step)]


def _node_of(driver: HostRegistrar, nearest: Callable[[str], Node | None]) -> Node | None:
    try:
        return nearest(driver.pci_address())
    except DriverError:  # without a context registering fails too, and says so
        return None


def _check_room(size_bytes: int, needed_bytes: int, room: Room) -> None:
    if needed_bytes <= room.free_bytes:
        return
    where = "left below the container's limit" if room.is_container else "of memory free"
    fix = "give less, or raise it" if room.is_container else "give less, or free some memory"
    raise ConfigError(
        f"tiers.host.capacity: {_gib(size_bytes)} can't be pinned with {_gib(max(room.free_bytes, 0))} {where} "
        f"and {_gib(KEPT_BYTES)} kept for the rest; {fix}"
    )


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
