"""Spans, and the recorders that keep them.

All times are seconds on the clock of `time.monotonic`, which all processes of a machine share.
"""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

COLOURS = {
    "load": 0x2F6FB3,
    "store": 0xD9822B,
    "wait": 0xC23B3B,
    "gather": 0x8A5AA8,
    "scatter": 0x2E9E8F,
    "compute": 0xA8ADB3,
}
"""The names there are, and the colour of each as RGB."""
OTHER_COLOUR = 0x5F6B3A
"""Of a name that is not one of these."""
N_SPANS = 1 << 17
"""What a recorder keeps unless it is told otherwise: about 25 MiB."""


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work, [start_s, stop_s). `track` is its row: a thread, or a stream of a GPU."""

    name: str
    start_s: float
    stop_s: float
    track: str
    layer: int | None = None
    n_bytes: int | None = None


class _Idle:
    """Nobody asks."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, where: object) -> None:
        return None

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """`function`, each call of which is a span."""
        name = self._name

        @functools.wraps(function)
        def traced(*args: P.args, **kwargs: P.kwargs) -> R:
            with span(name):
                return function(*args, **kwargs)

        return traced


class _Timed(_Idle):
    """A span that somebody asks for."""

    __slots__ = ("_layer", "_n_bytes", "_start_s")

    def __init__(self, name: str, layer: int | None, n_bytes: int | None) -> None:
        super().__init__(name)
        self._layer = layer
        self._n_bytes = n_bytes
        self._start_s = 0.0

    def __enter__(self) -> None:
        if _domain is not None:
            _domain.push_range(_attributes(self._name, self._layer, self._n_bytes))
        self._start_s = time.monotonic()

    def __exit__(self, kind: object, error: object, where: object) -> None:
        stop_s = time.monotonic()
        for recorder in _recorders:
            recorder.keep(self._name, self._start_s, stop_s, self._layer, self._n_bytes)
        if _domain is not None:
            _domain.pop_range()


def span(name: str, *, layer: int | None = None, n_bytes: int | None = None) -> _Idle:
    """Times a block in a `with` statement; as a decorator, with a name alone, every call.

    It is kept by the recorders that are installed, and is an NVTX range in the domain `tenuto` where a profiler
    listens. While neither is there it costs about 0.2 microseconds. What raises is timed too.
    """
    if _recorders or _domain is not None:
        return _Timed(name, layer, n_bytes)
    try:
        return _IDLE[name]
    except KeyError:
        return _Idle(name)


def add(
    name: str, start_s: float, stop_s: float, track: str, *, layer: int | None = None, n_bytes: int | None = None
) -> None:
    """Give a span that was measured elsewhere to all installed recorders, see `Recorder.add`."""
    for recorder in _recorders:
        recorder.add(name, start_s, stop_s, track, layer=layer, n_bytes=n_bytes)


def is_recording() -> bool:
    """Whether a recorder is installed: else spans need not be measured to be added."""
    return bool(_recorders)


class Recorder:
    """Keeps the last `n_spans` spans that ended while it was installed, of all threads of the process.

    `with Recorder() as recorder:` installs it for the block. Several may be installed; each gets everything. Any thread
    may call anything.
    """

    def __init__(self, n_spans: int = N_SPANS) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[str, float, float, str, int | None, int | None]] = deque(maxlen=n_spans)
        self._n_all = 0
        self._thread = threading.local()
        self._threads: Counter[str] = Counter()  # by name

    def __enter__(self) -> Recorder:
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.remove()

    def install(self) -> None:
        """From now on spans are kept. Raises `ValueError` when it is installed already."""
        global _recorders  # noqa: PLW0603
        with _installing:
            if self in _recorders:
                raise ValueError("this recorder is installed already")
            _recorders = (*_recorders, self)

    def remove(self) -> None:
        """What ends from now on is not kept. Does nothing when it is not installed."""
        global _recorders  # noqa: PLW0603
        with _installing:
            _recorders = tuple(other for other in _recorders if other is not self)

    def add(
        self, name: str, start_s: float, stop_s: float, track: str, *, layer: int | None = None,
        n_bytes: int | None = None,
    ) -> None:  # fmt: skip
        """Keep a span that was measured elsewhere, installed or not.

        A GPU's events tell times relative to a base: record the base, synchronize it, take `time.monotonic()`, and
        add to that what `base.elapsed_time(event)` says, in seconds. `track` is the row, of any name ("scatter
        stream"). Raises `ValueError` for a span that ends before it begins.
        """
        if not stop_s >= start_s:
            raise ValueError(f"the span {name} ends at {stop_s} s, before it begins at {start_s} s")
        self._append((name, start_s, stop_s, track, layer, n_bytes))

    def keep(self, name: str, start_s: float, stop_s: float, layer: int | None, n_bytes: int | None) -> None:
        """Keep a span of the thread that calls: what `span` does."""
        try:
            track: str = self._thread.track
        except AttributeError:
            track = self._thread.track = self._new_track(threading.current_thread().name)
        self._append((name, start_s, stop_s, track, layer, n_bytes))

    def spans(self) -> list[Span]:
        """What is kept, by when it ended."""
        return self.snapshot()[0]

    def n_dropped(self) -> int:
        """Spans that later ones took the place of."""
        return self.snapshot()[1]

    def snapshot(self) -> tuple[list[Span], int]:
        """Both, of one moment."""
        with self._lock:
            kept, n_all = list(self._kept), self._n_all
        return [Span(*row) for row in kept], n_all - len(kept)

    def _append(self, row: tuple[str, float, float, str, int | None, int | None]) -> None:
        with self._lock:
            self._n_all += 1
            self._kept.append(row)

    def _new_track(self, name: str) -> str:
        """Threads of the same name have rows of their own."""
        with self._lock:
            self._threads[name] += 1
            number = self._threads[name]
        return name if number == 1 else f"{name} #{number}"


_IDLE = {name: _Idle(name) for name in COLOURS}
_installing = threading.Lock()
_recorders: tuple[Recorder, ...] = ()


def _nvtx_domain() -> Any:
    """Our domain; None without the package nvtx, and where no profiler listens."""
    try:
        nvtx = importlib.import_module("nvtx")
    except ImportError:
        return None
    domain = nvtx.get_domain("tenuto")
    return domain if isinstance(domain, nvtx.Domain) else None


_domain: Any = _nvtx_domain()


def _attributes(name: str, layer: int | None, n_bytes: int | None) -> Any:
    message = name if layer is None else f"{name} {layer}"
    return _domain.get_event_attributes(message=message, color=COLOURS.get(name, OTHER_COLOUR), payload=n_bytes)
