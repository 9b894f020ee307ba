"""`tenuto simulate`: rows, the table, the picture, and one line for what is wrong."""

import json
from xml.etree import ElementTree as ET

import pytest

from tenuto.cli.main import main

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
        (["--disk-admission", "some"], "--disk-admission: no admission is named 'some'; give one of default, all"),
        (["--host-to-disk", "fast"], "--host-to-disk: 'fast' is not a size"),
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
