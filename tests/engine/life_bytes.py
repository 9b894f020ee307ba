"""Every byte that is stored or loaded, compared with what the engine computed; on the CPU and on CUDA.

Nothing here waits for the engine's stream, so that a copy that is not ordered against the computing is found, not
hidden: what is to be stored is cloned on the stream of the computing, and what was loaded is read on a stream of its
own the moment its load is said to have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash

from tenuto.memory.layout import ExtentLayout
from tenuto.transfers.plan import Route, Transfer

MAX_TOLD = 20


def slot_pages(slot: memoryview, layout: ExtentLayout, page_tokens: int) -> np.ndarray:
    """A host slot's payload as uint8 ``(pages, layers, heads, 2, page_tokens, bytes of a dim)``: docs/format.md."""
    payload = np.frombuffer(slot, np.uint8)[layout.header_bytes : layout.extent_bytes]
    runs = payload.reshape(layout.n_layers, layout.segment_bytes)[:, : layout.n_heads * layout.run_bytes]
    n_pages = layout.block_tokens // page_tokens
    return np.moveaxis(runs.reshape(layout.n_layers, layout.n_heads, 2, n_pages, page_tokens, -1), 3, 0)


def page_bytes(copies: Sequence[torch.Tensor]) -> np.ndarray:
    """Pages of all layers, each ``(pages, heads, tokens, 2·dim)``, in the form of `slot_pages`."""
    layers: list[np.ndarray] = []
    for copy in copies:
        flat = copy.cpu().contiguous().view(torch.uint8).numpy()
        layers.append(np.moveaxis(flat.reshape(*flat.shape[:3], 2, -1), 3, 2))
    return np.stack(layers, axis=1)


@dataclass(frozen=True, slots=True)
class Clone:
    """Pages as the engine's computing leaves them at one place of its stream."""

    copies: list[torch.Tensor]
    made: Any
    """The event behind it; None on the CPU."""


class DevicePages:
    """The engine's KV tensors, one per layer: ``(pages, heads, tokens, 2·dim)`` with any strides."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._device = self._tensors[0].device
        self._is_cuda = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if self._is_cuda else None

    def clone(self, pages: Sequence[int]) -> Clone:
        """Behind all that is queued on the current stream, ahead of all that will be."""
        copies = self._select(pages)
        made = torch.cuda.current_stream(self._device).record_event() if self._is_cuda else None
        return Clone(copies, made)

    def read(self, clone: Clone) -> np.ndarray:
        """A clone's bytes; waits for nothing queued behind it."""
        if self._stream is None:
            return page_bytes(clone.copies)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(clone.made)
            return page_bytes(clone.copies)

    def read_now(self, pages: Sequence[int]) -> np.ndarray:
        """The bytes of pages at this moment, whatever is still on its way."""
        if self._stream is None:
            return page_bytes(self._select(pages))
        with torch.cuda.stream(self._stream):
            return page_bytes(self._select(pages))

    def _select(self, pages: Sequence[int]) -> list[torch.Tensor]:
        index = torch.tensor(list(pages), device="cpu")
        if self._is_cuda:  # from pageable memory the copy would wait for the stream
            index = index.pin_memory().to(self._device, non_blocking=True)
        return [tensor.index_select(0, index) for tensor in self._tensors]


class PageWitness:
    """Sees a worker's transfers, and knows by (block hash, page of the block) what the engine has computed for it.

    * device → host: the host slot holds what the pages held behind the forward that filled them;
    * disk → host: the slot holds what was once computed under this hash;
    * to the device: so do the pages, and from host memory they are the slot's bytes.

    Wrong bytes are an `AssertionError`, or only told in `wrong` if not `is_strict`.
    """

    def __init__(self, worker: Any, tensors: Sequence[torch.Tensor], *, is_strict: bool = True) -> None:
        self._layout: ExtentLayout = worker.setup.layout
        self._page_tokens: int = worker.setup.page_tokens
        self._slot = worker._movers._arena.slot
        self._device = DevicePages(tensors)
        self._is_strict = is_strict
        self._computed: dict[tuple[bytes, int], set[bytes]] = {}
        self._submitted: dict[int, Transfer] = {}
        self._clones: dict[int, Clone] = {}
        self.wrong: list[str] = []
        self.n_wrong = 0
        self.n_loaded = 0
        """Pages of the engine that were loaded and compared."""
        self.n_staged = 0
        self.n_read = 0
        """Pages that came from disk to host memory and were compared there."""
        engine = worker._running_engine()
        self._submit, self._poll = engine.submit, engine.poll
        engine.submit, engine.poll = self._see_submitted, self._see_polled
        self._layered = worker._layered
        if self._layered is not None:
            self._begin, self._end = self._layered.begin, self._layered.end
            self._layered.begin, self._layered.end = self._see_begun, self._see_ended

    def counts(self) -> dict[str, int]:
        """Pages by what was compared, and how many of them were wrong."""
        return {
            "pages.compared": self.n_loaded, "pages.staged": self.n_staged, "pages.read": self.n_read,
            "pages.wrong": self.n_wrong,
        }  # fmt: skip

    def _see_submitted(self, transfers: Sequence[Transfer], *queued: Any) -> None:
        for transfer in transfers:
            self._submitted[transfer.id] = transfer
            if transfer.route is Route.DEVICE_TO_HOST:
                self._clones[transfer.id] = self._device.clone([page for run in transfer.pages for page in run.pages])
        self._submit(transfers, *queued)

    def _see_polled(self, *args: Any, **more: Any) -> Any:
        results = self._poll(*args, **more)
        for result in results:
            self._look(self._submitted.pop(result.transfer_id), result.failed)
        return results

    def _see_begun(self, transfers: Sequence[Transfer]) -> None:
        self._begun = transfers
        self._begin(transfers)

    def _see_ended(self, stores: Sequence[Transfer], *copying: Any) -> Sequence[Transfer]:
        """The forward has used what was loaded for it, layer by layer."""
        stores = self._end(stores, *copying)
        for transfer in self._begun:
            if transfer.route is Route.HOST_TO_DEVICE and transfer.id not in self._submitted:
                self._look(transfer, frozenset(self._layered._failures.get(transfer.id, ())))
        return stores

    def _look(self, transfer: Transfer, failed: frozenset[int]) -> None:
        clone = self._clones.pop(transfer.id, None)
        moved = [index for index in range(len(transfer.keys)) if index not in failed]
        if not moved or transfer.route is Route.HOST_TO_DISK:
            return
        if clone is not None:
            self._look_at_staged(transfer, moved, self._device.read(clone))
        elif transfer.route is Route.DISK_TO_HOST:
            for index in moved:
                for at, digest in enumerate(self._slot_digests(transfer.targets[index])):
                    self.n_read += 1
                    self._must_be_known(transfer, index, at, digest)
        else:
            self._look_at_loaded(transfer, moved)

    def _look_at_staged(self, transfer: Transfer, moved: list[int], found: np.ndarray) -> None:
        n_pages = len(transfer.pages[0].pages)
        for index in moved:
            in_slot = self._slot_digests(transfer.targets[index])
            for at, stored in enumerate(in_slot):
                computed = _digest(found[index * n_pages + at])
                self._computed.setdefault((transfer.keys[index].hash, at), set()).add(computed)
                self.n_staged += 1
                if stored != computed:
                    self._tell(f"{_name(transfer)} stored other bytes of page {at} of block {index}")

    def _look_at_loaded(self, transfer: Transfer, moved: list[int]) -> None:
        places = [
            (index, at, page)
            for index in moved
            for at, page in enumerate(transfer.pages[index].pages)
            if at >= transfer.pages[index].first
        ]
        found = self._device.read_now([page for _, _, page in places])
        is_from_host = transfer.route is Route.HOST_TO_DEVICE
        slots = {index: self._slot_digests(transfer.sources[index]) for index in moved} if is_from_host else {}
        for (index, at, _), page in zip(places, found, strict=True):
            digest = _digest(page)
            self.n_loaded += 1
            if is_from_host and digest != slots[index][at]:
                self._tell(f"{_name(transfer)} loaded other bytes into page {at} of block {index} than its slot has")
            self._must_be_known(transfer, index, at, digest)

    def _must_be_known(self, transfer: Transfer, index: int, at: int, digest: bytes) -> None:
        if digest not in self._computed.get((transfer.keys[index].hash, at), ()):
            self._tell(f"{_name(transfer)} loaded other bytes into page {at} of block {index} than were computed")

    def _slot_digests(self, number: int) -> list[bytes]:
        return [_digest(page) for page in slot_pages(self._slot(number), self._layout, self._page_tokens)]

    def _tell(self, what: str) -> None:
        assert not self._is_strict, what
        self.n_wrong += 1
        if len(self.wrong) < MAX_TOLD:
            self.wrong.append(what)


def _digest(page: np.ndarray) -> bytes:
    return xxhash.xxh3_128_digest(np.ascontiguousarray(page))


def _name(transfer: Transfer) -> str:
    return f"transfer {transfer.id} ({transfer.route.value}, {len(transfer.keys)} blocks)"
