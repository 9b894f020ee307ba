"""A real vLLM run is recorded; its recording is replayed, and is a trace."""

import pytest

from tenuto.simulator import Tiers, best_hits, read_recording, read_requests, replay, simulate
from tests.engine.tiny import prompt

pytestmark = pytest.mark.engine


def test_the_replay_of_a_real_run_decides_as_it_did_and_simulated_it_finds_as_much(start, tmp_path):
    """Host memory for some ten blocks and a small disk: prompts that share, go on and come back."""
    path = tmp_path / "run.jsonl"
    engine = start({
        "runtime": {"record_file": str(path)},
        "tiers": {"host": {"capacity": "4 MiB"}, "disk": {"capacity": "16 MiB", "file_bytes": "4 MiB"}},
    })  # fmt: skip
    sessions = [prompt(1, 128) + prompt(seed, 150 + 40 * seed) for seed in range(2, 8)]
    for turn in range(3):
        for at, tokens in enumerate(sessions):
            engine.generate(tokens)
            sessions[at] = tokens + prompt(100 + turn, 70)
            engine.forget()
        engine.generate(*sessions[:3])
    engine.settle()
    outcome = replay(path)
    assert outcome.differences == []
    assert outcome.n_lookups >= 20
    assert outcome.n_hit_blocks > 10
    assert outcome.n_removed > 10

    recording = read_recording(path)
    requests = read_requests(recording)
    lived = Tiers(recording.header.host_blocks, "lru", engine.leader.statistics()["disk.total"], "lru", "all")
    n_found = sum(simulate(requests, lived).n_hits.values())
    assert n_found == pytest.approx(outcome.n_hit_blocks, rel=0.03)  # its disk takes time
    assert n_found <= best_hits(requests, lived.n_host + lived.n_disk)
