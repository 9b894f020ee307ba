"""The demo, as a user runs it: a real model, a real text, three engines' worth of answers."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine


@pytest.mark.timeout(900)
def test_the_demo_hits_host_and_disk_and_answers_alike(tmp_path):
    command = [sys.executable, "-m", "tenuto.cli.main", "demo", "--json", "--dir", tmp_path]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    runs = {run["name"]: run for run in report["runs"]}
    assert list(runs) == ["cold", "host", "disk"]
    assert runs["cold"]["reused_tokens"] == 0
    for name in ("host", "disk"):
        assert runs[name]["output_ids"] == runs["cold"]["output_ids"]
        assert runs[name]["reused_tokens"] > 0.9 * runs[name]["prompt_tokens"]
        assert runs[name]["loaded_bytes"] > 100 << 20
        assert runs["cold"]["ttft_s"] / runs[name]["ttft_s"] > 4  # 18 and more on a quiet machine
