"""A recorded life, told again, comes to the same decisions."""

import json
import logging
from pathlib import Path

import pytest

from tenuto.connectors.session.recording import RecordFile
from tenuto.errors import ConfigError
from tenuto.manager import Filled
from tenuto.pools import POLICIES, Pool
from tenuto.simulator import (
    RecordedManager,
    Tiers,
    best_hits,
    is_recording,
    read_recording,
    read_requests,
    replay,
    simulate,
)
from tenuto.testing.clock import FakeClock
from tenuto.tokens import HashChain
from tenuto.transfers.plan import PageRun, TransferResult
from tests.session.session_rig import BLOCK, Rig
from tests.simulator.lives import live

pytestmark = pytest.mark.unit


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


def test_the_recording_of_the_engine_before_is_kept(tmp_path):
    path = tmp_path / "life.jsonl"
    for line in (b"1", b"2", b"3"):
        RecordFile(path, lambda: None).write(line)
    assert path.read_bytes() == b"3\n"
    assert (tmp_path / "life-before.jsonl").read_bytes() == b"2\n"


@pytest.mark.parametrize(
    ("field", "number"), [("host_blocks", -1), ("host_blocks", 0), ("host_blocks", 1 << 50), ("block_bytes", 0)]
)
def test_a_header_that_can_not_be_is_said_with_its_line(tmp_path, field, number):
    path = tmp_path / "life.jsonl"
    live(Rig(n_host=8, record_file=str(path)), 0, 3)
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps(json.loads(first) | {field: number}).encode() + b"\n" + rest)
    with pytest.raises(ConfigError, match=rf"^TRACE: .*life\.jsonl:1: Expected `int` .*{field}"):
        read_recording(path)


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


@pytest.mark.parametrize("seed", range(6))
def test_a_recording_is_a_trace_that_gives_the_lives_hit_rate(tmp_path, seed):
    """What the life finds, keeps, writes to disk and forgets is in it, if all that is found is loaded."""
    path = tmp_path / "life.jsonl"
    rig = Rig(n_host=24, disk_slots=40, record_file=str(path), cost_gate=False, policy="lru", admission="all")
    n_found, n_asked = live(rig, seed, admitted=1)
    recording = read_recording(path)
    requests = read_requests(recording)
    lived = Tiers(recording.header.host_blocks, "lru", 40, "lru", "all")
    outcome = simulate(requests, lived)
    assert (sum(outcome.n_hits.values()), outcome.n_blocks) == (n_found, n_asked)
    assert min(outcome.n_hits.values()) > 0
    assert n_found <= best_hits(requests, lived.n_host + lived.n_disk)
    assert simulate(requests, Tiers(8, "lru")).hit_rate < outcome.hit_rate
    for policy in POLICIES:
        n_hits = sum(simulate(requests, Tiers(24, policy)).n_hits.values())
        assert n_found / 4 < n_hits <= best_hits(requests, 24)


class Told:
    """A manager that is told by hand, and its recording."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.clock = FakeClock()
        self.manager = RecordedManager(Pool("host", 8))
        self.manager.record(lambda line: self.file.write(line + b"\n") and None, self.clock, {
            "host_blocks": 8, "host_policy": "lru", "has_disk": False, "disk_policy": "lru", "admission": "all",
            "max_writes": 1, "block_tokens": BLOCK, "block_bytes": 4096,
        })  # fmt: skip
        self.path = path

    def chain(self, n_blocks: int) -> HashChain:
        chain = HashChain(bytes(16), BLOCK)
        chain.append(range(n_blocks * BLOCK))
        return chain

    def keep(self, chain: HashChain, start: int, stop: int) -> None:
        for transfer in self.manager.offload([Filled(chain, start, [PageRun((0,))] * (stop - start))]):
            self.manager.complete(TransferResult(transfer.id))

    def requests(self) -> list[tuple[int | None, int, range]]:
        """First block asked for, blocks that are known by then, and what is kept."""
        self.manager.take_facts()
        self.file.flush()
        return [(one.start, len(one.hashes), one.kept) for one in read_requests(read_recording(self.path))]


def test_a_lookup_that_is_made_again_before_anything_came_of_it_counts_once(tmp_path):
    told = Told(tmp_path / "told.jsonl")
    first, second = told.chain(4), told.chain(4)
    told.manager.lookup(first, 0)
    told.manager.lookup(second, 0)
    told.keep(first, 0, 4)
    told.manager.lookup(second, 0).release()
    told.manager.onboard(told.manager.lookup(second, 1), [PageRun((0,))] * 3)  # the engine had found one itself
    assert told.requests() == [(0, 4, range(0)), (None, 4, range(4)), (1, 4, range(0))]


def test_a_request_that_is_preempted_asks_again(tmp_path):
    told = Told(tmp_path / "told.jsonl")
    chain = told.chain(2)
    told.manager.lookup(chain, 0)
    told.keep(chain, 0, 2)
    told.manager.onboard(told.manager.lookup(chain, 0), [PageRun((0,))] * 2)
    told.manager.lookup(chain, 0).release()
    assert told.requests() == [(0, 2, range(0)), (None, 2, range(2)), (0, 2, range(0)), (0, 2, range(0))]


def test_what_is_generated_is_kept_and_was_not_asked_for(tmp_path):
    told = Told(tmp_path / "told.jsonl")
    chain = told.chain(2)
    told.manager.lookup(chain, 0)
    chain.append(range(BLOCK))
    told.keep(chain, 0, 3)
    assert told.requests() == [(0, 2, range(0)), (None, 3, range(3))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"tenuto_recording":1', ":1: "),
        ('{"tenuto_recording":1}\n', ":1: Object missing required field"),
        ('{"tenuto_recording":9}\n', "is a recording of another version"),
        ("{HEADER}\n{}\n", ":2: broken line"),
        ('{HEADER}\n{"t":0,"ops":[[]]}\n', ":2: broken line"),
        ('{HEADER}\n{"t":0,"ops":[["x",7,""]]}\n', ":2: broken line"),
        ('{HEADER}\n{"t":0,"ops":[["y"]]}\n', ":2: broken line"),
    ],
)
def test_a_recording_of_no_use_as_a_trace_is_one_line(tmp_path, text, said):
    told = Told(tmp_path / "told.jsonl")
    told.file.close()
    told.path.write_text(text.replace("{HEADER}", told.path.read_text().strip()))
    with pytest.raises(ConfigError, match=said) as raised:
        read_requests(read_recording(told.path))
    assert "\n" not in str(raised.value)
