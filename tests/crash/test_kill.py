"""A process that stores and evicts is killed at random moments; every time, what is left is whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.crash

ROUNDS, STRIPED_ROUNDS = 60, 24
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("n_rounds", "others"), [(ROUNDS, ()), (STRIPED_ROUNDS, ("x", "y"))], ids=["one", "striped"])
def test_killed_at_random_moments_it_reopens_with_whole_verified_blocks_only(tmp_path, n_rounds, others):
    folders = [tmp_path / other for other in others]
    command = [sys.executable, "-m", "tests.crash.zygote", tmp_path / "root", str(n_rounds), "20261129", *folders]
    done = subprocess.run(command, cwd=REPOSITORY, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["rounds"] == n_rounds
    assert report["bad"] == []  # every listed block is whole and verified
    assert report["lost"] == []  # every confirmed block is there
    assert report["orphans"] == []
    assert report["used_wrong"] == 0
    assert report["over"] == []
    assert report["folders"] == 1
    assert report["with_blocks"] > n_rounds / 2  # the kills did not all come before the first block
