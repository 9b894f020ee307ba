"""A recorded life, told again, comes to the same decisions."""

import json
import logging
from pathlib import Path
from random import Random

import pytest

from tenuto.connectors.session.recording import RecordFile
from tenuto.errors import ConfigError
from tenuto.simulator import is_recording, replay
from tests.session.session_rig import BLOCK, Rig, View

pytestmark = pytest.mark.unit


def live(rig: Rig, seed: int, n_steps: int = 150) -> None:
    """Sessions that go on, share a beginning or come once, in a pool and a disk that are too small for them."""
    random, sessions = Random(seed), [[9] * 2 * BLOCK for _ in range(3)]
    for number in range(n_steps):
        if random.random() < 0.4:
            sessions.append(list(random.choice(sessions)[: 2 * BLOCK]))
        tokens = random.choice(sessions[-8:])
        tokens += random.choices(range(100), k=random.randrange(1, 4 * BLOCK))
        view = View(f"r{number}", list(tokens))
        while (found := rig.leader.lookup(view, 0)) is None:
            rig.answer(rig.step())
        if random.random() < 0.9:
            rig.leader.admit(view.request_id, range(100, 100 + len(tokens)), found)
        rig.answer(rig.step((view, view.n_tokens)))
        rig.leader.finish(view.request_id)
        if random.random() < 0.02:
            rig.leader.reset()
        rig.clock.advance(0.1)


@pytest.mark.parametrize("seed", range(4))
def test_a_replay_finds_and_evicts_what_the_life_did(tmp_path, seed):
    path = tmp_path / "life.jsonl"
    rig = Rig(n_host=24, disk_slots=40, record_file=str(path), cost_gate=bool(seed % 2))
    live(rig, seed)
    assert is_recording(path)
    outcome = replay(path)
    assert outcome.differences == []
    assert outcome.n_lookups >= 100
    assert outcome.n_hit_blocks > 50
    assert outcome.n_removed > 50


def test_a_replay_notices_another_decision(tmp_path):
    path = tmp_path / "life.jsonl"
    live(Rig(n_host=24, disk_slots=40, record_file=str(path)), 0)
    lines = path.read_text().splitlines()
    header = json.loads(lines[0])
    lines[0] = json.dumps(
        {"tenuto_recording": 1} | header | {"host_policy": "tinylfu", "disk_policy": "tinylfu"}, separators=(",", ":")
    )
    path.write_text("\n".join(lines) + "\n")
    assert replay(path).n_differences > 0


def test_a_recording_that_was_cut_off_is_replayed_up_to_there(tmp_path):
    path = tmp_path / "life.jsonl"
    live(Rig(n_host=24, disk_slots=40, record_file=str(path)), 1)
    path.write_bytes(path.read_bytes()[:-7])
    assert replay(path).n_differences == 0


def test_a_full_file_ends_the_recording_with_one_warning_and_serving_goes_on(tmp_path, caplog):
    ended = []
    file = RecordFile(tmp_path / "life.jsonl", lambda: ended.append(1), most_bytes=20)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            file.write(b"0123456789")
    assert (len(ended), len(caplog.records)) == (1, 1)
    assert (tmp_path / "life.jsonl").read_bytes() == b"0123456789\n"


def test_a_disk_that_refuses_ends_the_recording(caplog):
    ended = []
    file = RecordFile(Path("/dev/full"), lambda: ended.append(1))
    file.write(b"x")
    file.write(b"x")
    assert (len(ended), len(caplog.records)) == (1, 1)


def test_a_file_that_cant_be_written_is_said_at_start(tmp_path):
    with pytest.raises(ConfigError, match=r"runtime\.record_file: can't write .*; give another file"):
        Rig(record_file=str(tmp_path / "no" / "life.jsonl"))


def test_each_engine_of_data_parallelism_writes_a_recording_of_its_own(tmp_path):
    path = tmp_path / "run.jsonl"
    rigs = [Rig(n_host=24, disk_slots=40, record_file=str(path), engine_index=index) for index in range(3)]
    for seed, rig in enumerate(rigs):
        live(rig, seed, 30)
    assert {file.name for file in tmp_path.iterdir()} == {"run.jsonl", "run-dp1.jsonl", "run-dp2.jsonl"}
    outcomes = [replay(tmp_path / name) for name in ("run.jsonl", "run-dp1.jsonl", "run-dp2.jsonl")]
    assert [outcome.n_differences for outcome in outcomes] == [0, 0, 0]
    assert len({outcome.n_hit_blocks for outcome in outcomes}) == 3
