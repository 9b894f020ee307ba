"""What a real engine counts, read where users read it: at our port, at vLLM's /metrics, in vLLM's log line."""

import socket
import urllib.request

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.tiny import prompt

pytestmark = pytest.mark.engine

TOKENS = prompt(40, 500)  # 7 blocks of 64
HIT = 448
EXTENT = 135168  # bytes of a block


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def samples(text: str) -> dict[str, float]:
    """Our series: name and other labels → value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("tenuto_") and not sample.name.endswith("_created"):
                assert sample.labels["engine"] == "0"
                labels = sorted((k, v) for k, v in sample.labels.items() if k not in ("engine", "model_name"))
                found[" ".join((sample.name, *(v for _, v in labels)))] = sample.value
    return found


def settle(engine) -> None:
    """Step through vLLM's front, which takes in each step's stats, until nothing is on its way."""
    while engine.leader.has_pending:
        engine.llm.llm_engine.step()


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return samples(answer.read().decode())


def read(engine, port: int) -> dict[str, float]:
    """Our port's series, which are vLLM's too."""
    import vllm

    settle(engine)
    own = scrape(port)
    theirs = samples(generate_latest(REGISTRY).decode())
    if vllm.__version__.startswith("0.27"):  # its LLM class, not its server, drops the stats of steps without outputs
        theirs = own | {name: value for name, value in theirs.items() if name.startswith("tenuto_tier_")}
    assert {name: value for name, value in own.items() if value} == {n: v for n, v in theirs.items() if v}
    return own


def tokens_of(found: dict[str, float]) -> dict[str, float]:
    """What is counted in tokens and is not zero."""
    names = [name for name in found if "_tokens_total" in name and found[name]]
    return {name.removeprefix("tenuto_").replace("_tokens_total", ""): found[name] for name in names}


def start_at(start, port):
    return start({"runtime": {"metrics_port": port}})


def test_tokens_are_counted_exactly_over_hits_of_every_kind(start, port):
    engine = start_at(start, port)
    found = scrape(port)  # vLLM's has nothing before the first step
    assert tokens_of(found) == {}
    assert found["tenuto_tier_capacity_bytes host"] == (64 << 20) // EXTENT * EXTENT - 4 * EXTENT  # less bounce slots

    engine.ask(TOKENS)
    found = read(engine, port)
    assert tokens_of(found) == {"asked": 500}
    assert found["tenuto_tier_bytes host"] == found["tenuto_tier_bytes disk"] == 7 * EXTENT
    assert found["tenuto_transferred_bytes_total host_to_disk"] == 7 * EXTENT

    engine.ask(TOKENS)
    assert tokens_of(read(engine, port)) == {"asked": 1000, "engine": 480}  # 15 pages of 32

    engine.forget()
    assert engine.ask(TOKENS)[0] == HIT
    found = read(engine, port)
    assert tokens_of(found) == {"asked": 1500, "engine": 480, "found host": HIT, "loaded host": HIT}
    assert found["tenuto_load_seconds_count host"] == found["tenuto_loads_total"] == 1
    assert found["tenuto_lookup_seconds_count"] == 3

    engine = start_at(start, port)  # counts from zero, at vLLM's too
    assert engine.ask(TOKENS)[0] == HIT
    found = read(engine, port)
    assert tokens_of(found) == {"asked": 500, "found disk": HIT, "loaded disk": HIT}
    assert found["tenuto_transferred_blocks_total disk_to_host"] == 7
    assert found["tenuto_in_flight_transfers disk_to_host"] == found["tenuto_requests"] == 0


def test_a_corrupt_block_costs_the_tokens_from_it_on(start, port):
    engine = start_at(start, port)
    expected = engine.ask(TOKENS)[1]
    settle(engine)
    engine = start_at(start, port)
    store = engine.worker._store
    with (store.claim.folder / "pool-00000.kv").open("r+b") as file:
        file.seek(2 * EXTENT + EXTENT // 2)
        file.write(b"garbage")
    assert engine.ask(TOKENS)[1] == expected
    found = read(engine, port)
    assert tokens_of(found) == {"asked": 500, "found disk": HIT, "loaded disk": 128, "failed disk": 320}
    assert found["tenuto_corrupt_blocks_total disk"] == 1
    assert found["tenuto_failed_blocks_total corrupt disk_to_host"] == 1
    assert found["tenuto_failed_blocks_total corrupt host_to_device"] == 1


@pytest.fixture
def vllms_lines(monkeypatch) -> list[str]:
    """What vLLM's stats logger says; it exists only in engines that start when its level is INFO."""
    from vllm.v1.metrics.loggers import logger

    lines = []
    monkeypatch.setattr(logger, "isEnabledFor", lambda level: True)
    for level in ("info", "debug"):
        monkeypatch.setattr(logger, level, lambda text, *values: lines.append(text % values))
    return lines


def test_vllms_log_line_says_what_was_loaded_since_the_last(vllms_lines, start, port, monkeypatch):
    engine = start_at(start, port)
    front = engine.llm.llm_engine
    monkeypatch.setattr(front, "do_log_stats_with_interval", lambda: None)  # it would log by the clock, in between
    for _ in range(2):
        engine.ask(TOKENS)
        settle(engine)
        front.do_log_stats()
        engine.forget()
    cold, hit = (line for line in vllms_lines if line.startswith("KV Transfer"))
    assert "tokens asked=500, tokens in the engine=0, tokens loaded=0, tokens failed=0, hit rate (%)=0.0" in cold
    assert "tokens asked=500, tokens in the engine=0, tokens loaded=448, tokens failed=0, hit rate (%)=89.6" in hit


def test_a_taken_port_does_not_keep_the_engine_from_serving(start, our_log):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        engine = start_at(start, taken.getsockname()[1])
        assert len([r for r in our_log() if "runtime.metrics_port" in r.getMessage()]) == 1
        assert engine.ask(TOKENS)[0] == 0


def test_a_child_of_vllms_multiconnector_is_counted_too(start, tmp_path):
    child = {
        "kv_connector": "TenutoConnector", "kv_connector_module_path": "tenuto.connectors.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"layout": {"block_tokens": 64}, "runtime": {"cost_gate": False}},
    }  # fmt: skip
    multi = {
        "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [child]},
    }  # fmt: skip
    engine = start(kv_transfer_config=multi)
    engine.ask(TOKENS)
    engine.forget()
    assert engine.ask(TOKENS)[0] == HIT
    engine.llm.llm_engine.do_log_stats()
    found = samples(generate_latest(REGISTRY).decode())
    assert tokens_of(found) == {"asked": 1000, "found host": HIT, "loaded host": HIT}
