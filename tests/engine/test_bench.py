"""The bench that needs an engine, at tiny sizes: what it prints, never how fast it is."""

import json
import subprocess
import sys

import pytest

from tenuto.cli.bench.command import TARGETS

pytestmark = pytest.mark.engine


def bench(name, folder, *more):
    command = [sys.executable, "-m", "tenuto.cli.main", "bench", name, "--quick", "--json", "--dir", str(folder), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_ttft_bench_finds_each_prompt_where_it_says(tmp_path):
    result = bench("ttft", tmp_path)
    reused, loaded = result["details"]["reused_tokens"], result["details"]["loaded_tokens"]
    assert result["details"]["left_out"] == {}
    assert reused["off.cold.1024"] == reused["ours.cold.1024"] == reused["off.recompute.1024"] == 0
    assert reused["off.engine.1024"] >= 992
    assert loaded["ours.host.1024"] == {"host": 1024}
    assert loaded["ours_disk.disk.1024"] == {"disk": 1024}
    measured = {"host_hit_over_floor", "disk_hit_over_floor", "cold_over_off", "wire_gb_s", "disk_gb_s"}
    assert measured <= set(result["figures"])
    assert len(result["details"]["samples_ms"]["ours.host.1024"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_split_bench_loads_from_disk_beside_computing(tmp_path):
    result = bench("split", tmp_path / "d", "--out", str(tmp_path / "out"), "--tokens", "2048", "--repeats", "1")
    figures, details = result["figures"], result["details"]
    assert details["left_out"] == {}
    assert details["rounds"] == {"ours_split": 1, "ours_split_1k": 1}
    for name in details["rounds"]:
        part = details[name]
        assert part["loaded_tokens"] == {"disk": [2048] * 3}
        assert part["computed_had_tokens"] == {str(n): [n] for n in range(0, 2049, 256)}
    assert set(TARGETS["split"]) <= set(figures)
    assert {"split_over_bound_1k", "bound_lookahead_ms_1k", "bound_async_ms", "load_gb_s"} <= set(figures)
    assert figures["compared_answers"] == figures["compared_answers_1k"] == 2
    assert figures["different_answers"] == figures["different_answers_1k"] == 0
    assert 0 <= figures["load_hidden"] <= 1
    (picture,) = (tmp_path / "out").glob("split-*.svg")
    assert all(f">{name}</text>" in picture.read_text() for name in ("compute", "load", "wait", "scatter"))
    assert list((tmp_path / "d").iterdir()) == []


def test_the_serving_bench_compares_the_same_traffic(tmp_path):
    result = bench("serving", tmp_path, "--repeats", "1")
    figures = result["figures"]
    assert {"itl_median", "itl_p99", "throughput_over_off"} <= set(figures)
    assert figures["off.fresh.reused_share"] == figures["ours.fresh.reused_share"] == 0
    assert figures["ours.saturated.reused_share"] > 0
    assert figures["ours.rate_40.ttft_ms_median"] <= figures["ours.rate_40.ttft_ms_p99"]
    assert result["details"]["rounds"] == {"fresh": 1, "saturated": 1, "rate_40": 1}
    assert "nothing in common" in result["details"]["method"]


def test_the_scheduler_bench_measures_steps_and_an_admission():
    command = [sys.executable, "-m", "tenuto.cli.main", "bench", "scheduler", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout)["figures"]
    assert set(TARGETS["scheduler"]) <= set(figures)
    assert 0 < figures["step_ms_median"] <= figures["step_ms_p99"] <= figures["step_ms_max"]
    assert figures["step_ms_median"] < figures["vllm_step_ms_median"]
    assert 0 < figures["admit_32k_ms"] <= figures["admit_32k_ms_max"]
