"""The bench that needs an engine, at tiny sizes: what it prints, never how fast it is."""

import json
import subprocess
import sys

import pytest

from tenuto.cli.bench.command import TARGETS

pytestmark = pytest.mark.engine


def test_the_scheduler_bench_measures_steps_and_an_admission():
    command = [sys.executable, "-m", "tenuto.cli.main", "bench", "scheduler", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout)["figures"]
    assert set(TARGETS["scheduler"]) <= set(figures)
    assert 0 < figures["step_ms_median"] <= figures["step_ms_p99"] <= figures["step_ms_max"]
    assert figures["step_ms_median"] < figures["vllm_step_ms_median"]
    assert 0 < figures["admit_32k_ms"] <= figures["admit_32k_ms_max"]
