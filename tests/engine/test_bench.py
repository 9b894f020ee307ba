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
