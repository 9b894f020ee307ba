"""Trace files: the JSON array format of Chrome's trace viewer, which Perfetto reads too.

A span is a complete event ("ph": "X") with `ts` and `dur` in microseconds; threads, streams and the process have
metadata events ("ph": "M"). The format is Google's "Trace Event Format".
"""

from __future__ import annotations

import atexit
import logging
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from tenuto.errors import ConfigError
from tenuto.traces.spans import N_SPANS, Recorder, Span

logger = logging.getLogger(__name__)


def to_json(spans: Iterable[Span], process: str = "tenuto", n_dropped: int = 0, pid: int | None = None) -> bytes:
    """The file's contents; one row for each track, in the order of their names. `n_dropped` is shown at the process."""
    spans = sorted(spans, key=lambda span: span.start_s)
    pid = os.getpid() if pid is None else pid
    rows = {track: number for number, track in enumerate(sorted({span.track for span in spans}), start=1)}
    events = [_meta(pid, 0, "process_name", {"name": process})]
    if n_dropped:
        label = f"{n_dropped} earlier spans were dropped"
        events.append(_meta(pid, 0, "process_labels", {"labels": label, "n_dropped": n_dropped}))
    for track, tid in rows.items():
        events.append(_meta(pid, tid, "thread_name", {"name": track}))
        events.append(_meta(pid, tid, "thread_sort_index", {"sort_index": tid}))
    events += [_event(span, pid, rows[span.track]) for span in spans]
    return b"[\n" + b",\n".join(map(msgspec.json.encode, events)) + b"\n]\n"


def read_trace(path: Path) -> list[Span]:
    """The complete events of a trace file, also of another program's, by when they began.

    Raises `ConfigError` for a file that can't be read or holds no trace.
    """
    try:
        found: Any = msgspec.json.decode(path.read_bytes())
        events = cast("list[dict[str, Any]]", found["traceEvents"] if isinstance(found, dict) else found)
        tracks = {
            (event["pid"], event["tid"]): str(event["args"]["name"])
            for event in events
            if event["ph"] == "M" and event["name"] == "thread_name"
        }
        spans = [_span(event, tracks) for event in events if event["ph"] == "X"]
    except OSError as error:
        raise ConfigError(f"{path}: can't be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a trace in Chrome's JSON format ({type(error).__name__}: {error})") from None
    return sorted(spans, key=lambda span: span.start_s)


class TraceFile:
    """A recorder that is installed until `close`, or the end of the process, writes its spans to `path`."""

    def __init__(self, path: Path, process: str = "tenuto", n_spans: int = N_SPANS) -> None:
        """Raises `OSError` when `path` can't be written; what is there now stays until `close`."""
        if path.is_dir():
            raise IsADirectoryError(21, "is a folder", str(path))
        _temporary(path).unlink()
        self.path = path
        self.recorder = Recorder(n_spans)
        self._process = process
        self._pid = os.getpid()
        self._is_closed = False
        self.recorder.install()
        atexit.register(self.close)

    def close(self) -> None:
        """Write the file, whole or not at all; one line in the log says which. Does nothing when called again."""
        if self._is_closed or self._pid != os.getpid():  # a forked child has a copy of us
            return
        self._is_closed = True
        self.recorder.remove()
        atexit.unregister(self.close)
        spans, n_dropped = self.recorder.snapshot()
        try:
            _replace(self.path, to_json(spans, self._process, n_dropped))
        except OSError as error:
            logger.warning("tenuto: no trace at %s (%s)", self.path, error.strerror or error)
        else:
            logger.info("tenuto: trace at %s: %d spans, %d earlier ones dropped", self.path, len(spans), n_dropped)


def open_trace(path: Path, process: str = "tenuto", n_spans: int = N_SPANS) -> TraceFile | None:
    """A `TraceFile`; None, logged in one line, when `path` can't be written."""
    try:
        return TraceFile(path, process, n_spans)
    except OSError as error:
        logger.warning("tenuto: no trace at %s (%s); serving goes on without", path, error.strerror or error)
        return None


def _meta(pid: int, tid: int, name: str, args: dict[str, str | int]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _event(span: Span, pid: int, tid: int) -> dict[str, Any]:
    args = {key: value for key, value in (("layer", span.layer), ("bytes", span.n_bytes)) if value is not None}
    start_us, stop_us = round(span.start_s * 1e6, 3), round(span.stop_s * 1e6, 3)
    return {
        "name": span.name, "cat": "tenuto", "ph": "X", "ts": start_us, "dur": round(stop_us - start_us, 3),
        "pid": pid, "tid": tid, "args": args,
    }  # fmt: skip


def _span(event: dict[str, Any], tracks: dict[tuple[Any, Any], str]) -> Span:
    start_s, seconds = event["ts"] / 1e6, event.get("dur", 0) / 1e6
    track = tracks.get((event["pid"], event["tid"]), f"thread {event['tid']}")
    layer, n_bytes = (_whole_number(event.get("args", {}).get(key)) for key in ("layer", "bytes"))
    return Span(str(event["name"]), start_s, start_s + seconds, track, layer, n_bytes)


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) else None  # other programs have arguments of their own


def _temporary(path: Path) -> Path:
    """An empty file beside `path`."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    temporary.touch(exist_ok=False)
    return temporary


def _replace(path: Path, data: bytes) -> None:
    temporary = _temporary(path)
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
