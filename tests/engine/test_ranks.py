"""Several ranks: tensor-parallel ones fill, hit, restart and fail together; data-parallel ones share the disk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenuto.simulator import replay

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).resolve().parents[2]
HIT = 256  # of 300 tokens


def run(module, *arguments):
    command = [sys.executable, "-m", f"tests.engine.{module}", *arguments]
    environment = os.environ | {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_two_ranks_fill_hit_restart_and_recompute_together(model, tmp_path):
    first = run("two_ranks", model, tmp_path / "root", "first")
    outputs = [output for n_cached, output in first["cold"]]
    assert [n_cached for n_cached, _ in first["cold"]] == [0] * 4
    assert first["host"] == [[HIT, outputs[0]]]
    again = run("two_ranks", model, tmp_path / "root", "again")
    assert again["disk"] == [[HIT, outputs[0]]]
    assert again["errors"][0][1] == outputs[1]
    assert again["hangs"][0][1] == outputs[2]
    assert again["works again"] == [[HIT, outputs[3]]]
    figures = again["figures"]
    assert figures["failed.disk_to_host.io_error"] == 4  # one rank of two; counted once
    assert figures["failed.host_to_device.timeout"] == 4
    assert figures["requests"] == figures["host.leased"] == figures["disk.leased"] == figures["flights"] == 0


@pytest.mark.scale  # four minutes of starting processes
def test_a_data_parallel_engine_reads_what_the_other_wrote_and_has_a_recording_of_its_own(model, tmp_path):
    answers = run("data_parallel", model, tmp_path / "root")
    (n_cold, output), *hits = answers.values()
    assert n_cold == 0
    assert hits == [[HIT, output], [HIT, output]]
    outcomes = [replay(tmp_path / name) for name in ("run.jsonl", "run-dp1.jsonl")]
    assert [outcome.differences for outcome in outcomes] == [[], []]
    assert [outcome.n_hit_blocks for outcome in outcomes] == [HIT // 64] * 2
