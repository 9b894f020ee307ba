"""A store of others in the place of our pool files: in a folder that we claimed, checked by us."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager

from tenuto.errors import StoreError, store_error
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.disk.instance import Claim
from tenuto.tiers.store import OWN, Capacity, Failure, Layers, OpenStore, SlotIO, StoreNews, failures_of
from tenuto.tokens import BlockKey

logger = logging.getLogger(__name__)


class _NoPeers:
    """Stores of others are not shared between engines."""

    def news(self) -> dict[str, list[tuple[int, BlockKey]]]:
        """Nothing is."""
        return {}


class ForeignStore:
    """See `Store`. What `inner` reads is verified here once more before anybody gets it, whatever `inner` does.

    An `OSError` of `inner` is mapped here. Raises `StoreError` when `inner` can't be opened now.
    """

    def __init__(self, claim: Claim, codec: ExtentCodec, open_store: OpenStore, capacity_bytes: int) -> None:
        self.claim = claim
        """The folder that is written, which this process holds."""
        self._codec = codec
        with ExitStack() as undo, _mapped(f"open a store in {claim.folder}"):
            self._inner = open_store(claim.folder, codec, capacity_bytes)
            undo.callback(self._inner.close)
            found: Sequence[tuple[int, BlockKey]] = getattr(self._inner, "recovered", ())
            self._capacity = self._inner.capacity()
            by_slot = {slot: key for slot, key in found if 0 <= slot < self._capacity.n_slots}
            undo.pop_all()
        if not hasattr(self._inner, "recovered"):
            logger.warning(
                "tenuto: tiers.disk.store: %s has no `recovered`: its blocks are lost at a restart",
                type(self._inner).__name__,
            )
        self.recovered = list(by_slot.items())
        """(slot, key) of every block that was there, oldest first."""
        self.peers = _NoPeers()

    def capacity(self) -> Capacity:
        """See `Store`. What it was last where `inner` can't say: the engine asks in its steps."""
        try:
            with _mapped(self._what("ask")):
                self._capacity = self._inner.capacity()
        except StoreError as error:
            logger.debug("%r does not tell its capacity: %s", self._inner, error)
        return self._capacity

    def write(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        return self._all(items, "write", lambda: self._inner.write(items))

    def write_layers(self, items: Sequence[SlotIO], layers: Layers) -> list[Failure]:
        """See `Store`."""
        return self._all(items, "write layers", lambda: self._inner.write_layers(items, layers))

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        return self._all(items, "commit", lambda: self._inner.commit(items))

    def read(self, items: Sequence[SlotIO], volume: str = OWN, layers: Layers | None = None) -> list[Failure]:
        """See `Store`."""
        codec = self._codec
        failures = self._all(items, "read", lambda: self._inner.read(items, volume, layers))
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
        with _mapped(self._what("forget")):
            self._inner.forget(slots)

    def reset(self, namespace: bytes, epoch: int) -> None:
        """See `Store`."""
        self._codec = ExtentCodec(self._codec.layout, namespace)
        with _mapped(self._what("reset")):
            self._inner.reset(namespace, epoch)

    def attach(self, arena: memoryview) -> None:
        """Memory that a store of others is not told of."""

    def detach(self) -> None:
        """Nothing to undo."""

    def take_news(self) -> StoreNews:
        """A store of others moves nothing by itself."""
        return StoreNews()

    def close(self) -> None:
        """See `Store`."""
        with ExitStack() as closing:
            closing.callback(os.close, self.claim.lock_fd)
            closing.callback(self._inner.close)

    def _all(self, items: Sequence[SlotIO], verb: str, do: Callable[[], list[Failure]]) -> list[Failure]:
        """The failures of a batch, or all of it where `do` raises one."""
        try:
            with _mapped(self._what(verb)):
                return do()
        except StoreError as error:
            return failures_of([error] * len(items))

    def _what(self, verb: str) -> str:
        return f"{verb} with {type(self._inner).__name__} in {self.claim.folder}"

    def __repr__(self) -> str:
        return f"<ForeignStore {self._inner!r} in {self.claim.folder}>"


@contextmanager
def _mapped(what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise store_error(error, what) from error
