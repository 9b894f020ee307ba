"""A worker's layered loads: those of a step, what of them failed, and what was computed on top of that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tenuto.config import Runtime
from tenuto.transfers.engine import TransferEngine
from tenuto.transfers.lanes import LANDED, Landing
from tenuto.transfers.lanes.device import Mark
from tenuto.transfers.layered import LayeredLoads, plan_loads
from tenuto.transfers.parts import Parts
from tenuto.transfers.plan import Transfer, TransferResult

_LOOK_S = 0.05


class LayeredWork:
    """On the engine's thread: `begin`, `load_layer` for each layer, `end`; then `take_failed_pages` and `poll`.

    What can't go layer by layer, as what goes straight from disk to the device, is waited for in `begin`, and so is all
    while a read that was given up has not ended. An engine
    that plans ahead hears of a failure when it has used the wrong tokens: with `may_fail` false nothing is given up,
    and `end` raises `RuntimeError` rather than have wrong bytes served.
    """

    def __init__(
        self, parts: Parts, engine: TransferEngine, mark: Callable[[], Mark], runtime: Runtime, *, may_fail: bool = True
    ) -> None:
        self._may_fail = may_fail
        self._engine = engine
        self._mark = mark
        self._loads = LayeredLoads(
            parts,
            lookahead=runtime.layers_ahead,
            timeout_s=runtime.load_timeout_s if may_fail else threading.TIMEOUT_MAX,
        )
        self._is_open = False
        """Whether a step has begun that has not ended."""
        self._transfers: dict[int, Transfer] = {}
        """Loads into pages of this step, by id."""
        self._failures: dict[int, tuple[int, ...]] = {}
        """Blocks of them that failed, by id."""
        self._results: list[TransferResult] = []
        self._held: list[tuple[Landing, list[TransferResult]]] = []
        """Results of stores that were begun and are not kept: told when nothing writes their slots any more."""
        self._failed_pages: set[int] = set()

    def begin(self, transfers: Sequence[Transfer]) -> None:
        """The loads of this step, with the reads that they wait for. One before it that was broken off has failed."""
        if self._is_open:
            self.end(())
        self._is_open = True
        plans, rest = plan_loads(transfers)
        if self._loads.is_stuck():
            plans, rest = [], list(transfers)
        self._transfers = {transfer.id: transfer for transfer in transfers if transfer.pages}
        self._failures = {}
        self._loads.begin(plans, self._mark())
        if rest:
            self._engine.submit(rest)
            self._wait({transfer.id for transfer in rest if transfer.pages})  # only these have a deadline

    def load_layer(self, layer: int) -> None:
        """See `LayeredLoads.load_layer`."""
        self._loads.load_layer(layer)

    def end(self, stores: Sequence[Transfer], copying: Landing = LANDED) -> Sequence[Transfer]:
        """The forward is queued: of what it fills, the transfers that may be started.

        `copying`: what is on its way out of its pages already. A block that was computed behind one that failed holds
        wrong bytes, and the engine computes it again. Which these are is not known here, since what lies between may be
        in host memory and not of this step: where a load has failed, nothing is kept.
        """
        self._is_open = False
        for load_id, failures in self._loads.end().items():
            self._failures[load_id] = tuple(failures)
        if self._failures and not self._may_fail:
            raise RuntimeError(f"blocks in host memory could not be loaded under the forward: {self._failures}")
        for load_id, indices in self._failures.items():
            for index in indices:
                run = self._transfers[load_id].pages[index]
                self._failed_pages.update(run.pages[run.first :])
        if not self._failures:
            return stores
        if stores:
            cancelled = [TransferResult.cancelled(store, "its source failed") for store in stores]
            self._held.append((copying, cancelled))
        return ()

    def take_failed_pages(self) -> set[int]:
        """Engine pages that were not loaded after all, since the last call."""
        failed, self._failed_pages = self._failed_pages, set()
        return failed

    def take_waited_s(self) -> float:
        """That the engine's thread has waited for layers since the last call."""
        waited_s, self._loads.waited_s = self._loads.waited_s, 0.0
        return waited_s

    def poll(self) -> list[TransferResult]:
        """Results since the last call: ours, and what came from the engine's lanes while `begin` waited for some."""
        results, self._results = self._results, []
        while self._held and self._held[0][0].has_ended:
            results += self._held.pop(0)[1]
        return results + self._loads.poll()

    def close(self, timeout_s: float = 0.0) -> bool:
        """End after what is on its way; whether that came within `timeout_s`."""
        return self._loads.close(timeout_s)

    def _wait(self, ids: set[int]) -> None:
        """Until these transfers have ended, which they do by their deadline."""
        while ids:
            for result in self._engine.poll(_LOOK_S):
                self._results.append(result)
                ids.discard(result.transfer_id)
                if result.failures and result.transfer_id in self._transfers:
                    self._failures[result.transfer_id] = tuple(result.failed)
