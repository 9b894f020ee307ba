"""`tenuto simulate`: rows, the table, the picture, and one line for what is wrong."""

import json
from xml.etree import ElementTree as ET

import pytest

from tenuto.cli.main import main
from tenuto.config import Host
from tests.session.session_rig import Rig
from tests.simulator.lives import live

pytestmark = pytest.mark.unit


@pytest.fixture
def trace(tmp_path):
    """Two sessions that go on in turns, and prompts that come once."""
    path = tmp_path / "trace.jsonl"
    lines = []
    for turn in range(6):
        for session in (1000, 2000):
            lines.append({"timestamp": len(lines) * 100, "hash_ids": [session + n for n in range(2 + turn)]})
        lines.append({"timestamp": len(lines) * 100, "hash_ids": [5000 + 10 * turn + n for n in range(4)]})
    path.write_text("".join(json.dumps(line | {"input_length": 1, "output_length": 1}) + "\n" for line in lines))
    return path


def test_rows_name_policy_capacity_and_hit_rate(trace, capsys):
    assert main(["simulate", str(trace), "--capacity-blocks", "4,100", "--policy", "default,lru", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["policy"], row["capacity_blocks"]) for row in rows] == [
        ("default", 4), ("lru", 4), ("default", 100), ("lru", 100),
    ]  # fmt: skip
    assert all(0 <= row["hit_rate"] <= row["optimum"] <= 1 for row in rows)
    assert rows[2]["hit_rate"] == rows[2]["optimum"] == pytest.approx(40 / 78, abs=1e-4)


def test_tiers_of_more_slots_than_the_trace_has_blocks_take_no_memory_for_them(trace, capsys):
    sizes = ("--capacity-blocks", "100,99999999999", "--disk-blocks", "99999999999")
    assert main(["simulate", str(trace), *sizes, "--policy", "default", "--json"]) == 0
    few, many = json.loads(capsys.readouterr().out)
    assert many["capacity_blocks"] == 99_999_999_999
    assert many["hit_rate"] == few["hit_rate"] == few["optimum"]


def test_the_table_and_the_picture_have_the_optimum(trace, tmp_path, capsys):
    out = tmp_path / "rates.svg"
    assert main(["simulate", str(trace), "--capacity-blocks", "4,16", "--policy", "lru", "--plot", str(out)]) == 0
    assert capsys.readouterr().out.split("\n")[0].split() == ["blocks", "lru", "opt"]
    texts = [node.text for node in ET.parse(out).iter() if node.tag.endswith("text")]
    assert {"lru", "opt"} <= set(texts)


def test_a_disk_and_bandwidths_change_where_blocks_are_found(trace, capsys):
    line = ["simulate", str(trace), "--capacity-blocks", "8", "--disk-blocks", "64", "--policy", "lru", "--json"]
    assert main(line) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["disk_hit_rate"] > 0
    assert row["disk_writes"] > 0
    assert main([*line, "--device-to-host", "8MiB", "--disk-to-host", "1 MiB", "--block-bytes", "1 MiB"]) == 0
    (slow,) = json.loads(capsys.readouterr().out)
    assert slow["waited_s"] > row["waited_s"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "lur"], "--policy: no policy is named 'lur'; give one of default, lru"),
        (["--policy", ","], "--policy: no name"),
        (["--capacity-blocks", "0"], "--capacity-blocks: 0 is no capacity; give 1 or more"),
        (["--capacity-blocks", "many"], "--capacity-blocks: 'many' is no list of numbers"),
        (["--disk-blocks", "-1"], "--disk-blocks: -1 is no capacity"),
        (
            ["--disk-blocks", "9", "--disk-admission", "some"],
            "--disk-admission: no admission is named 'some'; give one of default, all",
        ),
        (["--host-to-device", "fast"], "--host-to-device: 'fast' is not a size"),
        (["--disk-policy", "lru"], "--disk-policy: there is no disk tier without --disk-blocks; give it, or leave"),
        (["--disk-blocks", "0", "--disk-admission", "all"], "--disk-admission: there is no disk tier without"),
        (["--host-to-disk", "2GB"], "--host-to-disk: there is no disk tier without --disk-blocks"),
        (["--disk-to-host", "2GB"], "--disk-to-host: there is no disk tier without --disk-blocks"),
        (["--block-bytes", "2MiB"], "--block-bytes: is for bandwidths, as of --device-to-host; give one, or leave"),
        (["--plot", "rates.png"], "--plot: 'rates.png' is no SVG, which is all that is drawn; give a name that ends"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(trace, capsys, options, said):
    assert main(["simulate", str(trace), *options]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "can't read"),
        ("", "has no requests"),
        ('{"timestamp": 0, "hash_ids": [1]}\n{"timestamp": 0\n', ":2: "),
        ('{"timestamp": 0, "hash_ids": ["a"]}\n', ":1: "),
        ('{"timestamp": 0, "hash_ids": [1, 2, 1]}\n', ":1: a block twice"),
        ('{"tenuto_recording":9}\n', "of another version"),
    ],
)
def test_a_trace_of_no_use_is_one_line_that_names_it(tmp_path, capsys, text, said):
    path = tmp_path / "bad.jsonl"
    if text is not None:
        path.write_text(text)
    assert main(["simulate", str(path), "--capacity-blocks", "4"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tenuto simulate: TRACE: ")
    assert said in line


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Of two engines of one server; blocks found and asked for by both."""
    path = tmp_path_factory.mktemp("recorded") / "run.jsonl"
    rigs = [Rig(n_host=24, record_file=str(path), engine_index=index, cost_gate=False) for index in range(2)]
    found, asked = zip(*(live(rig, seed, 60, admitted=1) for seed, rig in enumerate(rigs)), strict=True)
    return [str(path), str(path.with_name("run-dp1.jsonl"))], sum(found), sum(asked)


def test_a_recording_without_options_is_replayed_and_with_some_it_is_a_trace(recordings, capsys):
    (path, _), _, _ = recordings
    assert main(["simulate", path]) == 0
    shown = capsys.readouterr()
    assert "0 decisions differ from the recorded ones" in shown.out
    (line,) = shown.err.splitlines()
    assert "made the recorded decisions again" in line
    assert main(["simulate", path, "--capacity-blocks", "8,16", "--policy", "default,lru"]) == 0
    shown = capsys.readouterr()
    assert shown.out.split("\n")[0].split() == ["blocks", "default", "lru", "opt"]
    (line,) = shown.err.splitlines()
    assert line.startswith("tenuto simulate: simulates the 60 recorded requests, with caches that are empty")


def test_several_recordings_are_replayed_one_by_one(recordings, capsys):
    paths, _, _ = recordings
    assert main(["simulate", *paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines[::2]] == paths
    assert main(["simulate", *paths, "--json"]) == 0
    assert [row["recording"] for row in json.loads(capsys.readouterr().out)] == paths


def test_engines_of_one_server_have_a_cache_each_and_their_hits_are_counted_together(recordings, capsys):
    paths, n_found, n_asked = recordings
    lived = ["--disk-blocks", "64", "--policy", Host().policy, "--json"]
    assert main(["simulate", *paths, *lived]) == 0
    shown = capsys.readouterr()
    (row,) = json.loads(shown.out)
    assert row["capacity_blocks"] == 20  # as the server had it
    assert row["hit_rate"] == pytest.approx(n_found / n_asked, abs=1e-5)
    assert row["hit_rate"] <= row["optimum"]
    assert "of 2 engines, each with a cache of its own of so many blocks" in shown.err


def test_several_traces_are_refused_in_one_line(trace, recordings, capsys):
    assert main(["simulate", *recordings[0], str(trace)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tenuto simulate: TRACE: {trace} is no recording; give recordings of one server, or one")


def test_a_recording_without_a_request_is_no_trace(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    Rig(record_file=str(path))
    assert main(["simulate", str(path), "--policy", "lru"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tenuto simulate: TRACE: {path} has no requests; record a server while it")
