"""Threads that look: one for each event stream, one for each metrics endpoint."""

from __future__ import annotations

import http.client
import logging
import math
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

from tenuto.cli.top.looks import EventsSeen, MetricsLook, MetricsSeen, Values
from tenuto.cli.top.tally import Tally
from tenuto.events import subscribe
from tenuto.metrics import BY_NAME, Kind

_IDLE_S = 0.05
_SETTLE_S = 2.0
"""Behind the first message of a publisher that is never idle, what there was before is in."""
_FETCH_S = 5.0
_JOIN_S = 0.2
_MOST_BYTES = 64 << 20
_PARTS = ("_sum", "_count")  # of a histogram


class EventsWatcher(threading.Thread):
    """Follows a stream. `seen` is new every `interval_s`. Raises `ConfigError` for a URL that is none."""

    def __init__(self, url: str, shown: str, n_ranks: int, interval_s: float) -> None:
        super().__init__(name="tenuto-top-events", daemon=True)
        self._subscription = subscribe(url, n_ranks=n_ranks)
        self._interval_s = interval_s
        self._tally = Tally()
        self._is_over = threading.Event()
        self.seen = EventsSeen(shown, self._tally.look())

    def run(self) -> None:
        """Until `stop`."""
        look_at = time.monotonic() + min(self._interval_s, 0.5)
        settled_at, is_settled = float("inf"), False
        with self._subscription as events:
            while not self._is_over.is_set():
                message = events.next(_IDLE_S)
                now_s = time.monotonic()
                if message is not None:
                    self._tally.take(message)
                    settled_at = min(settled_at, now_s + _SETTLE_S)
                elif events.n_answering:
                    settled_at = now_s
                is_settled = is_settled or now_s >= settled_at
                if now_s >= look_at:
                    look_at = now_s + self._interval_s
                    self._show(is_settled)

    def note(self, text: str) -> None:
        """Something went wrong, which is shown beside what is seen. From this thread."""
        self.seen = replace(self.seen, note=text, note_s=time.monotonic())

    def end(self, fault: str) -> None:
        """It has died. From this thread."""
        self.seen = replace(self.seen, ended=fault)

    def stop(self) -> None:
        """End, soon."""
        self._is_over.set()

    def _show(self, is_settled: bool) -> None:
        events, before = self._subscription, self.seen
        now = self._tally.look(events.n_gaps, events.n_snapshots, events.n_answering)
        two = before.now if before.is_settled else None  # else what there was would count as stored in between
        self.seen = EventsSeen(before.url, now, two, before.note, before.note_s, is_settled)


class MetricsWatcher(threading.Thread):
    """Reads an endpoint every `interval_s` into `seen`."""

    def __init__(self, url: str, interval_s: float, fetch: Callable[[str], str] | None = None) -> None:
        super().__init__(name="tenuto-top-metrics", daemon=True)
        self._url = url
        self._interval_s = interval_s
        self._fetch = fetch or fetch_text
        self._is_over = threading.Event()
        self.seen = MetricsSeen(url)

    def run(self) -> None:
        """Until `stop`."""
        while True:
            began_s = time.monotonic()
            self.look()
            if self._is_over.wait(max(0.0, self._interval_s - (time.monotonic() - began_s))):
                return

    def look(self) -> None:
        """Once."""
        before, began_s = self.seen, time.monotonic()
        try:
            engines = read_engines(self._fetch(self._url))
        except urllib.error.HTTPError as error:
            fault = f"it says {error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            fault = reason.strerror or str(reason) if isinstance(reason, OSError) else str(reason)
        except (ValueError, LookupError) as error:
            fault = f"what it says are no metrics ({error})"
        else:
            now_s = time.monotonic()
            self.seen = MetricsSeen(self._url, MetricsLook(now_s, now_s - began_s, engines), before.now)
            return
        self.seen = MetricsSeen(self._url, before.now, before.before, " ".join(fault.split()) or "no answer")

    def end(self, fault: str) -> None:
        """It has died. From this thread."""
        self.seen = replace(self.seen, ended=fault)

    def stop(self) -> None:
        """End, soon."""
        self._is_over.set()


Watcher = EventsWatcher | MetricsWatcher


class Notes(logging.Handler):
    """What is logged on a watcher's thread is a note of that watcher, and nothing on the screen."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging`."""
        thread = threading.current_thread()
        if isinstance(thread, EventsWatcher):
            thread.note(" ".join(record.getMessage().removeprefix("tenuto: ").removeprefix("events: ").split()))


@contextmanager
def faults_told() -> Generator[None]:
    """While it is open, what ends a watcher's thread stands in what that watcher has seen, and not on the screen."""
    before = threading.excepthook

    def hook(died: threading.ExceptHookArgs) -> None:
        if isinstance(died.thread, (EventsWatcher, MetricsWatcher)):
            words = " ".join(str(died.exc_value or "").split())
            died.thread.end(died.exc_type.__name__ + (f": {words}" if words else ""))
        else:
            before(died)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def stop(watchers: list[Watcher]) -> None:
    """End all; one that waits for an answer is left to end with the process."""
    for watcher in watchers:
        watcher.stop()
    for watcher in watchers:
        if watcher.ident is not None:
            watcher.join(_JOIN_S)


def fetch_text(url: str) -> str:
    """What an endpoint says, without a proxy. Raises `OSError`, `http.client.HTTPException`, `ValueError`."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"Accept": "text/plain"})
    with opener.open(request, timeout=_FETCH_S) as answer:
        return answer.read(_MOST_BYTES).decode()


def read_engines(text: str) -> dict[tuple[str, str], Values]:
    """Our series of a Prometheus text, by model and engine; all else in it is left out. Raises `ValueError`."""
    from prometheus_client.parser import text_string_to_metric_families

    ours = "\n".join(line for line in text.splitlines() if line.startswith(("tenuto_", "# TYPE tenuto_")))
    engines: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(ours + "\n"):
        for name, labels, value, *_ in family.samples:
            base = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)
            metric = BY_NAME.get(name) or BY_NAME.get(base)
            if metric is None or (metric.kind is Kind.HISTOGRAM) != (base != name):
                continue
            own = [labels.get(label, "") for label in metric.labels]
            if not math.isfinite(value) or any(len(word.split()) != 1 for word in own):
                continue  # none of ours
            engines[labels.get("model_name", ""), labels.get("engine", "")][" ".join((name, *own))] = value
    return dict(engines)
