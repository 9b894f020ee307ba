"""Our metrics in vLLM's terms, without an engine: what is sent, added up, and shown."""

import msgspec
import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from tenuto import metrics
from tenuto.metrics import Recorder, series
from tenuto.testing.clock import FakeClock

pytestmark = pytest.mark.engine


@pytest.fixture
def stats():
    """The module under test: importing it imports vLLM."""
    from tenuto.connectors.vllm import stats

    return stats


class Config:
    kv_transfer_config = None


def sent(data):
    """As another process gets it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(data))


def make_prom(stats, engines=(0, 1)):
    labelvalues = {engine: ["some-model", str(engine)] for engine in engines}
    kinds = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    return stats.TenutoPromMetrics(Config(), kinds, ["model_name", "engine"], labelvalues)


def value(name, engine="0", **labels):
    return REGISTRY.get_sample_value(name, {"model_name": "some-model", "engine": engine, **labels})


def make_feed(stats):
    recorder, clock = Recorder(), FakeClock()
    return recorder, clock, stats.StatsFeed(recorder, clock)


def test_what_is_new_is_sent_once(stats):
    recorder, _, feed = make_feed(stats)
    assert feed.take(is_busy=False) is None
    recorder.add(metrics.LOADS, 2)
    assert feed.take(is_busy=False).data == {"values": {"tenuto_loads_total": 2}, "observations": {}}
    assert feed.take(is_busy=False) is None


def test_while_requests_run_little_is_sent_and_nothing_is_lost(stats):
    recorder, clock, feed = make_feed(stats)
    n_sent = total = 0
    for _ in range(100):
        recorder.add(metrics.LOADS, 1)
        clock.advance(0.02)
        if (news := feed.take(is_busy=True)) is not None:
            n_sent += 1
            total += news.data["values"]["tenuto_loads_total"]
    assert 5 <= n_sent <= 10
    last = feed.take(is_busy=False)  # the last request has ended: no step may follow
    assert total + (last.data["values"]["tenuto_loads_total"] if last else 0) == 100


def test_intervals_add_up_and_the_later_gauge_counts(stats):
    name = series(metrics.TIER_BLOCKS, "host")
    load = series(metrics.LOAD_SECONDS, "host")
    first = stats.TenutoStats({"values": {"tenuto_loads_total": 2, name: 9}, "observations": {load: [0.5]}})
    second = stats.TenutoStats({"values": {"tenuto_loads_total": 3, name: 4}, "observations": {load: [0.1, 0.2]}})
    both = first.aggregate(second)
    assert both.data == {"values": {"tenuto_loads_total": 5, name: 4}, "observations": {load: [0.5, 0.1, 0.2]}}
    assert second.data["values"] == {"tenuto_loads_total": 3, name: 4}


def test_adding_up_what_was_received_leaves_the_message_as_it_was(stats):
    data = {"values": {"tenuto_loads_total": 2}, "observations": {"tenuto_lookup_seconds": [0.5]}}
    copy = sent(data)
    received = stats.TenutoStats.received(data)
    received.aggregate(stats.TenutoStats.received(copy))
    assert data == copy


def test_empty_stats_are_empty_and_so_are_those_that_were_reset(stats):
    empty = stats.TenutoStats.received(None)
    assert empty.is_empty()
    empty.data["values"]["tenuto_loads_total"] = 1
    assert not empty.is_empty()
    empty.reset()
    assert empty.is_empty()


def test_an_interval_in_which_only_gauges_changed_gives_no_log_line(stats):
    data = {"values": {series(metrics.TIER_BLOCKS, "host"): 7, "tenuto_loads_total": 0}, "observations": {}}
    assert stats.TenutoStats.received(sent(data)).is_empty()
    assert not stats.TenutoStats(data).is_empty()  # but it is sent


def test_a_whole_object_that_was_sent_is_unwrapped(stats):
    data = {"values": {"tenuto_loads_total": 2}, "observations": {}}
    whole = sent(stats.TenutoStats(data))
    assert stats.TenutoStats.received(whole).data == data


def test_prometheus_gets_each_engines_numbers_from_a_message(stats):
    prom = make_prom(stats)
    recorder, _, feed = make_feed(stats)
    assert value("tenuto_loads_total") == value("tenuto_loads_total", "1") == 0
    for n in (2, 3):
        recorder.add(metrics.FOUND_TOKENS, n, "disk")
        recorder.observe(metrics.LOAD_SECONDS, 0.25, "disk")
        prom.observe(sent(feed.take(is_busy=False).data), 1)
    assert value("tenuto_found_tokens_total", "1", tier="disk") == 5
    assert value("tenuto_found_tokens_total", "0", tier="disk") is None
    assert value("tenuto_load_seconds_count", "1", tier="disk") == 2
    assert value("tenuto_load_seconds_bucket", "1", tier="disk", le="0.3") == 2
    assert value("tenuto_load_seconds_bucket", "1", tier="disk", le="0.1") == 0


def test_a_gauge_is_what_it_was_last(stats):
    prom = make_prom(stats)
    for n in (7, 3):
        prom.observe({"values": {series(metrics.TIER_BLOCKS, "host"): n}, "observations": {}}, 0)
    assert value("tenuto_tier_blocks", tier="host") == 3


def test_the_next_engine_of_a_process_begins_at_zero(stats):
    make_prom(stats).observe({"values": {"tenuto_loads_total": 2}, "observations": {}}, 0)
    assert value("tenuto_loads_total") == 2
    make_prom(stats)
    assert value("tenuto_loads_total") == 0


def test_the_log_line_has_the_interval_in_tokens(stats):
    recorder, _, feed = make_feed(stats)
    recorder.add(metrics.ASKED_TOKENS, 1000)
    recorder.add(metrics.ENGINE_TOKENS, 100)
    recorder.add(metrics.LOADED_TOKENS, 600, "host")
    recorder.add(metrics.LOADED_TOKENS, 25, "peer")
    recorder.add(metrics.FAILED_TOKENS, 64, "disk")
    recorder.add(metrics.TRANSFERRED_BYTES, 3 << 20, "host_to_device")
    recorder.add(metrics.TRANSFERRED_BYTES, 1 << 20, "disk_to_device")
    recorder.add(metrics.TRANSFERRED_BYTES, 9 << 20, "disk_to_host")
    recorder.add(metrics.TRANSFERRED_BYTES, 2 << 20, "host_to_disk")
    recorder.add(metrics.FAILED_BLOCKS, 1, "disk_to_host", "corrupt")
    recorder.observe(metrics.LOAD_SECONDS, 0.1, "host")
    recorder.observe(metrics.LOAD_SECONDS, 0.3, "disk")
    recorder.observe(metrics.TRANSFER_SECONDS, 9.0, "disk_to_host")
    assert feed.take(is_busy=False).reduce() == {
        "tokens asked": 1000, "tokens in the engine": 100, "tokens loaded": 625, "tokens failed": 64,
        "hit rate (%)": 62.5, "loaded (MiB)": 4.0, "mean load (ms)": 200.0, "written to disk (MiB)": 2.0,
        "blocks failed": 1,
    }  # fmt: skip


def test_an_interval_without_requests_has_a_rate_of_zero(stats):
    assert stats.TenutoStats.received(None).reduce()["hit rate (%)"] == 0.0


def test_what_was_asked_for_in_the_interval_before_makes_no_rate_above_the_whole(stats):
    recorder, _, feed = make_feed(stats)
    recorder.add(metrics.ASKED_TOKENS, 100)
    recorder.add(metrics.LOADED_TOKENS, 160, "host")
    assert feed.take(is_busy=False).reduce()["hit rate (%)"] == 100.0
