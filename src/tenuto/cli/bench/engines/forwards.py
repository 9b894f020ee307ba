"""What the forwards of an engine in this process do, and when, as far as its connector sees it."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tenuto.traces import Recorder

if TYPE_CHECKING:
    from tenuto.cli.bench.deviceclock import DeviceClock

_TRACK = "forward"


@contextmanager
def record_forwards() -> Generator[Recorder]:
    """A recorder of the block's spans, among them `compute`: what lies between the waits of two layers.

    That of layer L begins with its attention and ends before that of the next. On a GPU events tell the times. Nothing
    is computed, and nobody else asks the connector, when the block begins and when it ends.
    """
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    connector: Any = get_kv_transfer_group()
    forwards = _Forwards(connector)
    with Recorder() as recorder:
        connector.wait_for_layer_load = forwards.wait_for_layer_load
        connector.wait_for_save = forwards.wait_for_save
        try:
            yield recorder
        finally:
            del connector.wait_for_layer_load, connector.wait_for_save
        forwards.tell(recorder)


class _Forwards:
    """Stands before a connector's hooks. A forward's layers are numbered as they come."""

    def __init__(self, connector: Any) -> None:
        self._wait_for_layer_load = connector.wait_for_layer_load
        self._wait_for_save = connector.wait_for_save
        self._clock = _make_clock()
        self._n_layers = 0
        self._began: Any = None
        self._computed: list[tuple[int, Any, Any]] = []

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._close()
        self._wait_for_layer_load(layer_name)
        self._began = self._clock.mark()
        self._n_layers += 1

    def wait_for_save(self) -> None:
        self._close()
        self._n_layers = 0
        self._wait_for_save()

    def tell(self, recorder: Recorder) -> None:
        """Add the spans."""
        for layer, began, ended in self._computed:
            start_s, stop_s = self._clock.seconds(began), self._clock.seconds(ended)
            recorder.add("compute", start_s, max(start_s, stop_s), _TRACK, layer=layer)

    def _close(self) -> None:
        if self._began is not None:
            self._computed.append((self._n_layers - 1, self._began, self._clock.mark()))
            self._began = None


class _HostClock:
    """Marks are times."""

    def mark(self) -> float:
        return time.monotonic()

    def seconds(self, mark: float) -> float:
        return mark


def _make_clock() -> _HostClock | DeviceClock:
    import torch

    from tenuto.cli.bench.deviceclock import DeviceClock

    return DeviceClock() if torch.cuda.is_available() else _HostClock()
