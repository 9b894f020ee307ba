"""What a Prometheus server reads at our own port."""

import builtins
import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tenuto import metrics
from tenuto.connectors.session.endpoint import MetricsEndpoint, RecorderCollector
from tenuto.errors import ConfigError
from tenuto.metrics import TABLE, Recorder, series

pytestmark = pytest.mark.adapter


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def exposed(recorder: Recorder, engine: str = "0") -> str:
    registry = CollectorRegistry()
    registry.register(RecorderCollector(recorder, engine))
    return generate_latest(registry).decode()


def samples(text: str) -> dict[tuple, float]:
    """(name, other labels) → value, of one engine."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("engine") == "0"
            found[sample.name, *sorted(labels.items())] = sample.value
    return found


def test_every_metric_is_told_with_its_kind_and_help():
    families = {family.name: family for family in text_string_to_metric_families(exposed(Recorder()))}
    assert {(f.name, f.type, f.documentation) for f in families.values()} == {
        (m.name.removesuffix("_total"), m.kind.value, m.help) for m in TABLE
    }


def test_series_have_their_labels_and_values():
    recorder = Recorder()
    recorder.add(metrics.FAILED_BLOCKS, 3, "disk_to_host", "corrupt")
    recorder.add(metrics.ASKED_TOKENS, 500)
    recorder.watch(lambda: {series(metrics.TIER_BYTES, "disk"): 1 << 40})
    found = samples(exposed(recorder))
    assert found["tenuto_failed_blocks_total", ("cause", "corrupt"), ("route", "disk_to_host")] == 3
    assert found["tenuto_asked_tokens_total",] == 500
    assert found["tenuto_tier_bytes", ("tier", "disk")] == 1 << 40


def test_histograms_are_cumulated_with_sum_and_count():
    recorder = Recorder()
    for seconds in (0.5, 0.0002, 0.0002, 100.0):
        recorder.observe(metrics.LOAD_SECONDS, seconds, "host")
    found = samples(exposed(recorder))
    name, host = "tenuto_load_seconds", ("tier", "host")
    at = {dict(key[1:])["le"]: value for key, value in found.items() if key[0] == f"{name}_bucket"}
    assert (at["0.0001"], at["0.0003"], at["0.3"], at["1.0"], at["30.0"], at["+Inf"]) == (0, 2, 2, 3, 3, 4)
    assert (found[f"{name}_count", host], found[f"{name}_sum", host]) == (4, pytest.approx(100.5004))


def test_the_port_tells_what_is_now_and_is_free_after_close():
    recorder, port = Recorder(), free_port()
    endpoint = MetricsEndpoint(port, recorder, "0")
    assert samples(scrape(port))["tenuto_loads_total",] == 0
    recorder.add(metrics.LOADS, 2)
    assert samples(scrape(port))["tenuto_loads_total",] == 2
    endpoint.close()
    with pytest.raises(urllib.error.URLError):
        scrape(port)
    again = MetricsEndpoint(port, Recorder(), "0")
    assert samples(scrape(port))["tenuto_loads_total",] == 0
    again.close()


def test_a_taken_port_is_one_line_that_names_the_setting(our_log):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        endpoint = MetricsEndpoint(port, Recorder(), "0")
    (record,) = our_log()
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"tenuto: runtime.metrics_port: no metrics at port {port}")
    endpoint.close()  # there is nothing to close


def test_a_port_beyond_the_last_one_is_a_line_too(our_log):
    MetricsEndpoint(65536, Recorder(), "1")
    assert "no metrics at port 65536" in our_log()[0].getMessage()


def test_without_prometheus_client_the_setting_is_refused_with_the_fix(monkeypatch):
    really = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("prometheus_client"):
            raise ModuleNotFoundError(name)
        return really(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError) as raised:
        MetricsEndpoint(9400, Recorder(), "0")
    assert str(raised.value) == (
        "runtime.metrics_port: 9400 needs prometheus_client, which is not installed; "
        "pip install prometheus-client, or give 0"
    )
