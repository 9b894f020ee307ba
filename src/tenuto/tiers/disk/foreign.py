"""A store of others in the place of our pool files: in a folder that we claimed, checked by us."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from tenuto.errors import StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.disk.instance import Claim
from tenuto.tiers.store import OWN, Capacity, Failure, Layers, SlotIO, Store
from tenuto.tokens import BlockKey

logger = logging.getLogger(__name__)


class OpenStore(Protocol):
    """How a class in `tiers.disk.store` is called.

    `folder` is this rank's alone, and the same one after a restart. `capacity_bytes` is the setting's, which the store
    keeps by itself. What it makes may have `recovered`, a list of (slot, key), oldest first: what it holds when opened.
    """

    def __call__(self, folder: Path, codec: ExtentCodec, capacity_bytes: int) -> Store:
        """Open it. Raises `StoreError` for a reason that may pass: the tier is off then until the next start."""
        ...


class _NoArena:
    """Memory that a store of others is not told of."""

    def attach(self, arena: memoryview) -> None:
        """Nothing to do."""

    def detach(self) -> None:
        """Nothing to undo."""


class _NoPeers:
    """Stores of others are not shared between engines."""

    def news(self) -> dict[str, list[tuple[int, BlockKey]]]:
        """Nothing is."""
        return {}


class ForeignStore:
    """See `Store`. What `inner` reads is verified here once more before anybody gets it, whatever `inner` does."""

    def __init__(self, claim: Claim, codec: ExtentCodec, open_store: OpenStore, capacity_bytes: int) -> None:
        self._claim = claim
        self._codec = codec
        with ExitStack() as undo:
            self._inner = open_store(claim.folder, codec, capacity_bytes)
            undo.callback(self._inner.close)
            found: list[tuple[int, BlockKey]] = getattr(self._inner, "recovered", [])
            self._capacity = self._inner.capacity()
            by_slot = {slot: key for slot, key in found if 0 <= slot < self._capacity.n_slots}
            undo.pop_all()
        self.recovered = list(by_slot.items())
        """(slot, key) of every block that was there, oldest first."""
        self.buffers = _NoArena()
        self.peers = _NoPeers()

    def capacity(self) -> Capacity:
        """See `Store`. What it was last where `inner` can't say: the engine asks in its steps."""
        try:
            self._capacity = self._inner.capacity()
        except StoreError as error:
            logger.debug("%r does not tell its capacity: %s", self._inner, error)
        return self._capacity

    def write(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        return self._inner.write(items)

    def write_layers(self, items: Sequence[SlotIO], layers: Layers) -> list[Failure]:
        """See `Store`."""
        return self._inner.write_layers(items, layers)

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        return self._inner.commit(items)

    def read(self, items: Sequence[SlotIO], volume: str = OWN, layers: Layers | None = None) -> list[Failure]:
        """See `Store`."""
        codec = self._codec
        failures = self._inner.read(items, volume, layers)
        failed = {failure.index for failure in failures}
        for index, item in enumerate(items):
            if index in failed:
                continue
            try:
                codec.verify_header(item.buffer, item.key.hash)
                codec.verify_layers(item.buffer, layers or (0, codec.layout.n_layers))
            except StoreError as error:
                failures.append(Failure(index, error.cause, str(error)))
        return failures

    def forget(self, slots: Sequence[int]) -> None:
        """See `Store`."""
        self._inner.forget(slots)

    def reset(self, namespace: bytes, epoch: int) -> None:
        """See `Store`."""
        self._codec = ExtentCodec(self._codec.layout, namespace)
        self._inner.reset(namespace, epoch)

    def close(self) -> None:
        """See `Store`."""
        with ExitStack() as closing:
            closing.callback(os.close, self._claim.lock_fd)
            closing.callback(self._inner.close)

    def __repr__(self) -> str:
        return f"<ForeignStore {self._inner!r} in {self._claim.folder}>"
