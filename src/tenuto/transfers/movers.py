"""How each route moves bytes: the route table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from tenuto.errors import Cause
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.store import SlotIO, Store
from tenuto.traces import span
from tenuto.transfers.lanes import Device, Landing
from tenuto.transfers.lanes.device import Mark
from tenuto.transfers.parts import Parts, at_indices
from tenuto.transfers.plan import BlockFailure, Route, Transfer, all_fail

Touching = Callable[[], AbstractContextManager[bool]]
"""Held while the device is written; false when the load was given up and must not write any more."""


class Movers:
    """Moves some blocks of a transfer and gives the failures. Called from several lanes at once.

    The arena's last `n_bounce` slots are ours, for disk → device; the pool must not use them.
    """

    def __init__(
        self,
        arena: HostArena,
        codec: ExtentCodec,
        device: Device,
        store: Store | None = None,
        n_bounce: int = 0,
    ) -> None:
        self.parts = Parts(device, arena, codec, store)
        self.extent_bytes = arena.extent_bytes
        self._arena = arena
        self._device = device
        self._bounce = list(range(arena.n_slots - n_bounce, arena.n_slots))
        self._table: dict[Route, Callable[[Transfer, list[int], Touching, Mark], list[BlockFailure]]] = {
            Route.HOST_TO_DISK: self._host_to_disk,
            Route.DISK_TO_HOST: self._disk_to_host,
            Route.HOST_TO_DEVICE: self._host_to_device,
            Route.DISK_TO_DEVICE: self._disk_to_device,
        }

    @property
    def codec(self) -> ExtentCodec:
        """Of the namespace that blocks are of; a reset replaces it."""
        return self.parts.codec

    @codec.setter
    def codec(self, codec: ExtentCodec) -> None:
        self.parts.codec = codec

    def gather(self, transfer: Transfer, indices: list[int]) -> Landing:
        """Queue the copies of a device → host transfer; on the engine's thread. `land` ends it, on any thread."""
        return self._device.gather(
            [transfer.pages[index] for index in indices], [transfer.targets[index] for index in indices]
        )

    def land(self, transfer: Transfer, indices: list[int], landing: Landing) -> None:
        """Wait for what `gather` queued, and write the headers."""
        for index in indices:
            self.codec.write_header(self._arena.slot(transfer.targets[index]), transfer.blocks[index])
        with span("wait", n_bytes=len(indices) * self.extent_bytes):
            landing.wait()

    def settle(self) -> None:
        """What the engine queues from now on comes after the reading of all gathers so far."""
        self._device.settle()

    def mark(self) -> Mark:
        """The moment that loads which are given now must come after; on the engine's thread."""
        return self._device.mark()

    def move(self, transfer: Transfer, indices: list[int], touching: Touching, after: Mark) -> list[BlockFailure]:
        """Move the blocks at `indices` of any other transfer; into the device after the mark."""
        with span("load" if transfer.route.is_load else "store", n_bytes=len(indices) * self.extent_bytes):
            return self._table[transfer.route](transfer, indices, touching, after)

    def _host_to_disk(self, transfer: Transfer, indices: list[int], _: Touching, __: Mark) -> list[BlockFailure]:
        wrong = self.parts.wrong_headers(transfer, transfer.sources, indices)
        good = [index for index in indices if index not in wrong]
        items = self.parts.items(transfer, transfer.targets, transfer.sources, good)
        failures = self.parts.needed_store().write(items)
        return [*wrong.values(), *at_indices(failures, good).values()]

    def _disk_to_host(self, transfer: Transfer, indices: list[int], _: Touching, __: Mark) -> list[BlockFailure]:
        return self._read(transfer, indices, [transfer.targets[index] for index in indices])

    def _host_to_device(
        self, transfer: Transfer, indices: list[int], touching: Touching, after: Mark
    ) -> list[BlockFailure]:
        wrong = self.parts.wrong_headers(transfer, transfer.sources, indices)
        good = [index for index in indices if index not in wrong]
        return [
            *wrong.values(),
            *self._scatter(transfer, good, [transfer.sources[index] for index in good], touching, after),
        ]

    def _disk_to_device(
        self, transfer: Transfer, indices: list[int], touching: Touching, after: Mark
    ) -> list[BlockFailure]:
        failures: list[BlockFailure] = []
        for at in range(0, len(indices), len(self._bounce)):
            part = indices[at : at + len(self._bounce)]
            bad = {f.index: f for f in self._read(transfer, part, self._bounce)}
            good = [(i, slot) for i, slot in zip(part, self._bounce, strict=False) if i not in bad]
            failures += bad.values()
            failures += self._scatter(transfer, [i for i, _ in good], [s for _, s in good], touching, after)
        return failures

    def _read(self, transfer: Transfer, indices: list[int], slots: Sequence[int]) -> list[BlockFailure]:
        items = [
            SlotIO(transfer.sources[i], transfer.keys[i], self._arena.slot(slot))
            for i, slot in zip(indices, slots, strict=False)
        ]
        failures = self.parts.needed_store().read(items, transfer.volume)
        return list(at_indices(failures, indices).values())

    def _scatter(
        self, transfer: Transfer, indices: list[int], slots: list[int], touching: Touching, after: Mark
    ) -> list[BlockFailure]:
        with touching() as is_allowed:
            if not is_allowed:
                return list(all_fail(indices, Cause.CANCELLED).values())
            self._device.scatter([transfer.pages[index] for index in indices], slots, after).wait()
        return []
