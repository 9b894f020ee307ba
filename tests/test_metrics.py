"""The table of metrics and the recorder: pure counting, read from any thread."""

import sys
import threading
from pathlib import Path

import pytest

from tenuto import metrics
from tenuto.metrics import SECONDS_BUCKETS, TABLE, Kind, Recorder, parse_series, series

pytestmark = pytest.mark.unit

UNITS = (
    "bytes",
    "seconds",
    "tokens",
    "blocks",
    "loads",
    "transfers",
    "requests",
    "second",
    "events",
    "batches",
    "snapshots",
    "replays",
)


@pytest.mark.parametrize("metric", TABLE, ids=lambda metric: metric.name)
def test_names_follow_prometheus_rules(metric):
    stem = metric.name.removesuffix("_total")
    assert metric.name.startswith("tenuto_")
    assert (stem != metric.name) == (metric.kind is Kind.COUNTER)
    assert stem.rpartition("_")[2] in UNITS  # in base units, in the plural, or per second
    assert (metric.kind is Kind.HISTOGRAM or metric is metrics.EVENT_LAG_SECONDS) == stem.endswith("_seconds")
    assert metric.key.count("{}") == len(metric.labels)
    assert metric.help
    assert not metric.help.endswith(".")


def test_no_two_metrics_share_a_name_or_a_key():
    assert len({metric.name for metric in TABLE}) == len({metric.key for metric in TABLE}) == len(TABLE)


def test_the_table_has_every_metric_there_is():
    defined = [value for value in vars(metrics).values() if isinstance(value, metrics.Metric)]
    assert sorted(defined, key=TABLE.index) == list(TABLE)


def test_a_series_reads_back_as_metric_and_labels():
    name = series(metrics.FAILED_BLOCKS, "disk_to_host", "io_error")
    assert parse_series(name) == (metrics.FAILED_BLOCKS, ("disk_to_host", "io_error"))
    assert parse_series(series(metrics.LOADS)) == (metrics.LOADS, ())
    with pytest.raises(KeyError):
        parse_series("tenuto_unheard_of_total")


def test_counters_add_up_by_label_and_begin_at_zero():
    recorder = Recorder()
    assert recorder.snapshot().values["tenuto_loads_total"] == 0
    recorder.add(metrics.FOUND_TOKENS, 64, "host")
    recorder.add(metrics.FOUND_TOKENS, 32, "disk")
    recorder.add(metrics.FOUND_TOKENS, 1, "host")
    recorder.add(metrics.FOUND_TOKENS, 0, "peer")  # what never happened is no series
    flat = recorder.snapshot().flat()
    assert (flat["tokens.found.host"], flat["tokens.found.disk"]) == (65, 32)
    assert "tokens.found.peer" not in flat


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (1e-5, 0), (1.1e-5, 1), (1.0, 10), (30.0, 13), (31.0, 14), (1e9, 14)]
)
def test_an_observation_is_in_the_first_bucket_whose_bound_it_does_not_exceed(seconds, bucket):
    recorder = Recorder()
    recorder.observe(metrics.LOOKUP_SECONDS, seconds)
    total, *counts = recorder.snapshot().histograms["tenuto_lookup_seconds"]
    assert total == seconds
    assert len(counts) == len(SECONDS_BUCKETS) + 1
    assert [i for i, count in enumerate(counts) if count] == [bucket]


def test_a_snapshot_does_not_change_afterwards():
    recorder = Recorder()
    recorder.observe(metrics.LOOKUP_SECONDS, 1.0)
    before = recorder.snapshot()
    recorder.observe(metrics.LOOKUP_SECONDS, 1.0)
    recorder.add(metrics.LOADS, 1)
    assert before.values["tenuto_loads_total"] == 0
    assert sum(before.histograms["tenuto_lookup_seconds"][1:]) == 1


def test_gauges_are_read_when_a_snapshot_is_taken():
    recorder = Recorder()
    backlog = [1, 2]
    recorder.watch(lambda: {series(metrics.BACKLOG_BLOCKS): len(backlog)})
    assert recorder.snapshot().flat()["backlog"] == 2
    backlog.clear()
    assert recorder.snapshot().flat()["backlog"] == 0


def test_changes_are_each_told_once():
    recorder = Recorder()
    recorder.add(metrics.LOADS, 5)
    watched = {series(metrics.BACKLOG_BLOCKS): 4, series(metrics.EVICTED_BLOCKS, "host"): 10}
    recorder.watch(lambda: dict(watched))
    recorder.follow()
    recorder.add(metrics.LOADS, 2)
    recorder.observe(metrics.LOAD_SECONDS, 0.5, "host")
    recorder.observe(metrics.LOAD_SECONDS, 0.25, "host")
    first = recorder.changes()
    assert first.values == {"tenuto_loads_total": 2, "tenuto_backlog_blocks": 4, "tenuto_evicted_blocks_total host": 10}
    assert first.observations == {"tenuto_load_seconds host": [0.5, 0.25]}
    assert recorder.changes() == metrics.Changes()
    watched |= {series(metrics.BACKLOG_BLOCKS): 3, series(metrics.EVICTED_BLOCKS, "host"): 12}
    assert recorder.changes().values == {"tenuto_backlog_blocks": 3, "tenuto_evicted_blocks_total host": 2}
    assert recorder.snapshot().flat()["loads"] == 7  # what is told is still counted


def test_what_nobody_follows_is_not_gathered():
    recorder = Recorder()
    recorder.observe(metrics.LOAD_SECONDS, 0.5, "host")
    with pytest.raises(AssertionError):
        recorder.changes()
    recorder.follow()
    assert recorder.changes() == metrics.Changes()


def test_reading_on_another_thread_sees_whole_histograms_and_growing_counters():
    recorder = Recorder()
    n = 20_000
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        writer = threading.Thread(
            target=lambda: [
                (recorder.add(metrics.LOADS, 1), recorder.observe(metrics.LOAD_SECONDS, 1.0, str(i % 50)))
                for i in range(n)
            ]
        )
        writer.start()
        last = 0
        while writer.is_alive():
            now = recorder.snapshot()
            assert now.values["tenuto_loads_total"] >= last
            last = now.values["tenuto_loads_total"]
            for total, *counts in now.histograms.values():
                assert total == sum(counts)
        writer.join()
    finally:
        sys.setswitchinterval(interval)
    assert recorder.snapshot().values["tenuto_loads_total"] == n


def test_the_guide_lists_exactly_the_table():
    guide = (Path(__file__).parent.parent / "docs" / "guide" / "metrics.md").read_text(encoding="utf-8")
    rows = [line for line in guide.splitlines() if line.startswith("| `tenuto_")]
    assert rows == [f"| `{m.name}` | {m.kind.value} | {', '.join(m.labels)} | {m.help} |" for m in TABLE]
