"""An engine whose blocks are moved, compacted and drained without end is killed; every time, what is left is whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LOST_AT_MOST = {"compact": 64}  # by a kill within a batch; a drop is told to nobody before it is done


def kill_and_look(folder, n_rounds, seed):
    command = [sys.executable, "-m", "tests.crash.agent_zygote", folder, str(n_rounds), str(seed)]
    done = subprocess.run(command, cwd=REPOSITORY, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [one for one in found if one["bad"] or one["orphans"] or one["twice"] or one["over"]] == []
    assert [one for one in found if len(one["lost"]) > LOST_AT_MOST.get(one["under_way"], 0)] == []
    assert sum(one["elsewhere"] > 0 for one in found) >= n_rounds / 4  # blocks were on further volumes
    return {one["under_way"] for one in found}


@pytest.mark.crash
def test_killed_while_blocks_are_moved_it_reopens_with_every_block_once_and_whole(tmp_path):
    kill_and_look(tmp_path, 12, 20261130)


@pytest.mark.scale
def test_killed_many_times_in_every_step(tmp_path):
    assert kill_and_look(tmp_path, 300, 1) == {"move", "compact", "register", "unregister"}
