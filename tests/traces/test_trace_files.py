"""Trace files: Chrome's format, written whole or not at all, and read again."""

import json
import subprocess
import sys

import pytest

from tenuto.errors import ConfigError
from tenuto.traces import Recorder, Span, TraceFile, is_recording, open_trace, read_trace, span, to_json

pytestmark = pytest.mark.unit

SPANS = [
    Span("load", 10.0, 10.25, "tenuto-load", 0, 4096),
    Span("compute", 10.125, 10.5, "compute", 0),
    Span("wait", 10.25, 10.3, "tenuto-load"),
]


def names_in(folder):
    return [path.name for path in folder.iterdir()]


@pytest.fixture(autouse=True)
def nothing_stays_installed():
    yield
    assert not is_recording()


def test_the_format_is_chromes():
    assert json.loads(to_json(SPANS, "tenuto rank 0", n_dropped=7, pid=5)) == [
        {"name": "process_name", "ph": "M", "pid": 5, "tid": 0, "args": {"name": "tenuto rank 0"}},
        {"name": "process_labels", "ph": "M", "pid": 5, "tid": 0,
         "args": {"labels": "7 earlier spans were dropped", "n_dropped": 7}},
        {"name": "thread_name", "ph": "M", "pid": 5, "tid": 1, "args": {"name": "compute"}},
        {"name": "thread_sort_index", "ph": "M", "pid": 5, "tid": 1, "args": {"sort_index": 1}},
        {"name": "thread_name", "ph": "M", "pid": 5, "tid": 2, "args": {"name": "tenuto-load"}},
        {"name": "thread_sort_index", "ph": "M", "pid": 5, "tid": 2, "args": {"sort_index": 2}},
        {"name": "load", "cat": "tenuto", "ph": "X", "ts": 10_000_000, "dur": 250_000, "pid": 5, "tid": 2,
         "args": {"layer": 0, "bytes": 4096}},
        {"name": "compute", "cat": "tenuto", "ph": "X", "ts": 10_125_000, "dur": 375_000, "pid": 5, "tid": 1,
         "args": {"layer": 0}},
        {"name": "wait", "cat": "tenuto", "ph": "X", "ts": 10_250_000, "dur": 50_000, "pid": 5, "tid": 2,
         "args": {}},
    ]  # fmt: skip


def test_a_trace_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(to_json(SPANS))
    for found, told in zip(read_trace(path), SPANS, strict=True):
        assert (found.name, found.track, found.layer, found.n_bytes) == (
            told.name, told.track, told.layer, told.n_bytes
        )  # fmt: skip
        assert (found.start_s, found.stop_s) == pytest.approx((told.start_s, told.stop_s), abs=1e-9)
    path.write_bytes(to_json([]))
    assert read_trace(path) == []


def test_the_object_form_and_events_of_others_are_read_too(tmp_path):
    path = tmp_path / "t.json"
    events = [{"name": "a", "ph": "X", "ts": 2e6, "dur": 5, "pid": 1, "tid": 9}, {"name": "b", "ph": "i", "ts": 1}]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    assert read_trace(path) == [Span("a", 2.0, 2.000005, "thread 9")]


@pytest.mark.parametrize(
    "text", ["", "{}", "[", "[1]", "7", '[{"ph": "X"}]', '[{"ph": "X", "name": "a", "ts": "?", "pid": 1, "tid": 1}]']
)
def test_what_is_no_trace_is_one_line(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not a trace in Chrome's JSON format") as raised:
        read_trace(path)
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="can't be read"):
        read_trace(tmp_path)


def test_a_trace_file_has_what_ended_until_it_was_closed(tmp_path, our_log):
    path = tmp_path / "t.json"
    path.write_text("of another run")
    trace = TraceFile(path, "tenuto rank 0", n_spans=2)
    for layer in range(3):
        with span("load", layer=layer):
            pass
    assert path.read_text() == "of another run"
    trace.close()
    with span("store"):
        pass
    path_as_it_was = path.read_bytes()
    trace.close()
    assert path.read_bytes() == path_as_it_was
    assert [found.layer for found in read_trace(path)] == [1, 2]
    told = [record.getMessage() for record in our_log()]
    assert told == [f"tenuto: trace at {path}: 2 spans, 1 earlier ones dropped"]
    assert names_in(tmp_path) == ["t.json"]


def test_a_process_that_ends_without_closing_writes_its_trace(tmp_path):
    path = tmp_path / "t.json"
    code = (
        "import os, pathlib, sys; from tenuto.traces import TraceFile, span\n"
        "trace = TraceFile(pathlib.Path(sys.argv[1]))\n"
        "with span('load'): pass\n"
        "if not (child := os.fork()): trace.close(); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "assert not pathlib.Path(sys.argv[1]).exists()\n"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True)
    assert [found.name for found in read_trace(path)] == ["load"]


def test_a_path_that_cannot_be_written_is_one_line_at_start(tmp_path, our_log):
    for path in (tmp_path, tmp_path / "none" / "t.json", tmp_path / ("n" * 300)):
        assert open_trace(path) is None
    lines = [record.getMessage() for record in our_log()]
    assert len(lines) == 3
    assert lines[0] == f"tenuto: no trace at {tmp_path} (is a folder); serving goes on without"
    assert names_in(tmp_path) == []


def test_a_path_that_went_away_is_one_line_at_the_end(tmp_path, our_log):
    folder = tmp_path / "d"
    folder.mkdir()
    trace = TraceFile(folder / "t.json")
    folder.rmdir()
    trace.close()
    (line,) = [record.getMessage() for record in our_log()]
    assert line.startswith(f"tenuto: no trace at {folder / 't.json'} (")


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, our_log):
    path = tmp_path / "t.json"
    path.write_text("of another run")
    trace = TraceFile(path)

    def refuse(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", refuse)
    trace.close()
    assert path.read_text() == "of another run"
    assert names_in(tmp_path) == ["t.json"]
    assert "No space left on device" in our_log()[-1].getMessage()


def test_spans_of_a_recorder_can_be_written_by_hand(tmp_path):
    with Recorder() as recorder, span("gather", n_bytes=1):
        pass
    (tmp_path / "t.json").write_bytes(to_json(recorder.spans()))
    assert read_trace(tmp_path / "t.json")[0].n_bytes == 1
