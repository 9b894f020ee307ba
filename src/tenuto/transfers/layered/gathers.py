"""Stores layer by layer: what a forward fills leaves its pages while later layers compute."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tenuto.memory.layout import ExtentLayout
from tenuto.memory.pages import PageRun
from tenuto.tiers.store import Layers
from tenuto.transfers.lanes import LANDED, Device, Landing
from tenuto.transfers.plan import Route, Transfer

logger = logging.getLogger(__name__)

LEAST_BYTES = 64 << 20
"""What is worth a gather of its own, which costs the engine's thread as much whatever it copies."""


@dataclass(frozen=True, slots=True)
class Landings:
    """Several, as one."""

    parts: tuple[Landing, ...]

    @property
    def has_ended(self) -> bool:
        """Whether all bytes are there already."""
        return all(part.has_ended for part in self.parts)

    def wait(self) -> None:
        """Until they are."""
        for part in self.parts:
            part.wait()

    def fence(self) -> None:
        """What the engine queues from now on comes after them."""
        for part in self.parts:
            part.fence()


@dataclass(slots=True, eq=False)
class _Forward:
    """What one forward fills. Its `landings` are of layers [0, `n_gathered`), in order."""

    ids: Sequence[int]
    runs: Sequence[PageRun]
    slots: Sequence[int]
    n_together: int
    landings: list[Landing] = field(default_factory=list[Landing])
    n_computed: int = 0
    n_gathered: int = 0
    is_spoilt: bool = False
    """Something of it may have been copied too early, or not at all."""


class LayeredGathers:
    """Copies out of one forward's pages at a time, all on the engine's thread.

    `begin` before the forward, `store_layer` behind each layer's attention, `end` behind the forward. So many layers
    are copied together as make `least_bytes`, since each gather costs the engine's thread. What was copied is for
    `TransferEngine.submit`, which ends it as any other transfer: no block is seen before it has landed whole.

    A layer that is told of twice is computed in parts, and what was copied behind the first may be wrong. Such a
    forward's pages are copied again by who submits it, and no later one goes by layers.
    """

    def __init__(self, device: Device, layout: ExtentLayout, least_bytes: int = LEAST_BYTES) -> None:
        self._device = device
        self._layout = layout
        self._now: _Forward | None = None
        self._is_off = False
        self.least_bytes = least_bytes
        self.n_gathers = 0
        """Copies of some layers so far."""

    def begin(self, transfers: Iterable[Transfer]) -> None:
        """What the next forward fills: those of `transfers` that leave the device."""
        self.drop()
        stages = [transfer for transfer in transfers if transfer.route is Route.DEVICE_TO_HOST]
        runs = [run for stage in stages for run in stage.pages]
        if runs and not self._is_off:
            slots = [slot for stage in stages for slot in stage.targets]
            n_together = -(-self.least_bytes // (len(runs) * self._layout.segment_bytes))
            self._now = _Forward([stage.id for stage in stages], runs, slots, n_together)

    def store_layer(self, layer: int) -> None:
        """The attention of this layer, and of those before it, is queued: copy what it filled, if it is enough."""
        forward = self._now
        if forward is None or forward.is_spoilt:
            return
        if layer < forward.n_computed:
            forward.is_spoilt = self._is_off = True
            logger.info('tenuto: layers are computed in parts here: runtime.save = "layers" can do nothing')
            return
        forward.n_computed = layer + 1
        if forward.n_computed - forward.n_gathered >= forward.n_together:
            self._gather(forward, (forward.n_gathered, forward.n_computed))

    def end(self) -> tuple[dict[int, Landing], Landing]:
        """The forward is queued: copy the layers that are left.

        (what copies each transfer whole, by its id; all copies that are on their way). A transfer that is not in the
        first is to be copied, or copied again.
        """
        forward, self._now = self._now, None
        if forward is None or not forward.landings:
            return {}, LANDED
        if not forward.is_spoilt and forward.n_gathered < self._layout.n_layers:
            self._gather(forward, (forward.n_gathered, self._layout.n_layers))
        every = Landings(tuple(forward.landings))
        if not forward.is_spoilt:
            return dict.fromkeys(forward.ids, every), every
        every.fence()  # what is copied again comes after it
        return {}, every

    def drop(self) -> None:
        """A forward was broken off: wait for what was copied, since host slots are given to others then."""
        if self._now is not None:
            self._now.is_spoilt = True
            with suppress(RuntimeError):  # a GPU that has failed copies nothing any more
                self.end()[1].wait()

    def _gather(self, forward: _Forward, layers: Layers) -> None:
        try:
            forward.landings.append(self._device.gather(forward.runs, forward.slots, layers))
        except Exception:
            logger.exception("layers %d to %d of a store failed", *layers)
            forward.is_spoilt = True
        forward.n_gathered = layers[1]
        self.n_gathers += 1
