"""`tenuto simulate` and `bench pool` with policies of others; packed traces, standard input, and who waits long."""

import gzip
import io
import json
import os
import sys

import pytest
from rich.console import Console

from tenuto.cli.bench import command, pooling
from tenuto.cli.bench.pooling import PoolSizes, measure_pool
from tenuto.cli.bench.progress import Bar
from tenuto.cli.main import main
from tenuto.cli.simulate.plan import DEFAULT_POLICIES
from tenuto.cli.simulate.progress import Watch
from tenuto.config import Config
from tenuto.simulator import Tiers
from tests.session.session_rig import Rig
from tests.simulator.lives import live

pytestmark = pytest.mark.unit

POLICIES = """
class Longest:
    '''Those go first that have lain here longest, beginnings of prompts before their ends.'''
    def __init__(self): self.there = {}
    def grow(self, n_slots): pass
    def cached(self, slots, keys, where): self.there |= dict.fromkeys(slots.tolist())
    def leased(self, slots):
        for slot in slots.tolist(): self.there.pop(slot, None)
    forgotten = leased
    def evict(self, n):
        victims = list(self.there)[:n]
        for slot in victims: del self.there[slot]
        return victims
class Never(Longest):
    def evict(self, n): return []
class Nothing(Longest):
    def evict(self, n): return None
class Raises(Longest):
    def evict(self, n): raise KeyError('a slot')
class Unmade(Longest):
    def __init__(self): raise OSError('no file')
class Short(Longest):
    def cached(self, slots, keys): pass
"""
WRONG = [
    ("Never", "others:Never was to choose "),
    ("Nothing", "others:Nothing: evict gave no list of slots, but None"),
    ("Raises", "others:Raises: evict raised KeyError: 'a slot'"),
    ("Unmade", "--policy: others:Unmade can't be made: OSError: no file; mend it"),
    ("Short", "others:Short: cached raised TypeError: "),
]


@pytest.fixture
def others(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "others", raising=False)
    (tmp_path / "others.py").write_text(POLICIES)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 1000 * n, "hash_ids": list(range(n % 3 * 9, n % 3 * 9 + 5))} for n in range(9)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def small(monkeypatch):
    """The bench's pool, small enough for a test."""
    sizes = PoolSizes(1024, 64, 2, 16, 8, 2)
    monkeypatch.setattr(pooling, "PoolSizes", lambda **_: sizes)


@pytest.fixture
def stdin():
    """Gives bytes as standard input, through a pipe."""
    former = os.dup(0)

    def give(data):
        read, write = os.pipe()
        os.write(write, data)
        os.close(write)
        os.dup2(read, 0)
        os.close(read)

    yield give
    os.dup2(former, 0)
    os.close(former)


def rows_of(capsys, *arguments):
    assert main(["simulate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("name", "said"), WRONG)
def test_a_policy_of_others_that_fails_is_one_line_that_names_it(trace, others, small, capsys, name, said):
    for line in (["simulate", str(trace), "--capacity-blocks", "6"], ["bench", "pool", "--quick"]):
        assert main([*line, "--policy", f"others:{name}"]) == 1
        (told,) = capsys.readouterr().err.splitlines()
        assert told.startswith(f"tenuto {line[0]}: {said}")


def test_a_disks_policy_of_others_that_fails_is_named_too(trace, others, capsys):
    line = ["simulate", str(trace), "--capacity-blocks", "6", "--disk-blocks", "6", "--disk-admission", "all"]
    assert main([*line, "--disk-policy", "others:Raises"]) == 1
    assert capsys.readouterr().err == "tenuto simulate: others:Raises: evict raised KeyError: 'a slot'\n"


def test_a_policy_of_others_that_works_is_a_column_of_its_own_width(trace, others, capsys):
    name = "others:Longest"
    line = ["simulate", str(trace), "--capacity-blocks", "6,99", "--disk-blocks", "9", "--policy", f"lru,{name}"]
    assert main(line) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["blocks", "lru", name, "opt"]
    at = lines[0].index(name) + len(name)
    assert [text[at - 1] for text in lines if text.endswith("%") and "disk" not in text] == ["%", "%"]


@pytest.mark.parametrize("has_rich", [True, False])
def test_the_pools_table_names_the_policy_and_says_what_it_has_no_figure_of(
    others, small, capsys, monkeypatch, has_rich
):
    if not has_rich:
        monkeypatch.setattr(command, "find_spec", lambda _: None)
    assert main(["bench", "pool", "--quick", "--policy", "others:Longest"]) == 0
    shown = capsys.readouterr().out
    assert "pool, policy others:Longest, on" in shown
    assert "allocate_register_us" in shown
    assert "match_8192_ms" in shown
    assert "no time of a match" not in shown


def test_a_policy_that_keeps_no_prompt_whole_has_no_figure_of_a_match(others, monkeypatch, capsys):
    with Bar(Console(file=io.StringIO())) as bar:
        figures = measure_pool(PoolSizes(1024, 64, 2, 16, 8, 2, "tinylfu"), bar)
    assert "match_8192_ms" in figures
    monkeypatch.setattr(pooling._Groups, "whole", lambda _: [])
    monkeypatch.setattr(pooling, "PoolSizes", lambda **_: PoolSizes(1024, 64, 2, 16, 8, 2))
    assert main(["bench", "pool", "--quick", "--policy", "tinylfu"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no time of a match: with this policy the full pool has no prompt of 8192 blocks whole" in shown
    assert "match_" not in shown
    assert "fill_us" in shown
    assert main(["bench", "pool", "--quick", "--policy", "tinylfu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["details"]["left_out"].startswith("no time of a match")


def test_a_packed_trace_and_standard_input_are_read_as_the_trace_is(trace, stdin, capsys):
    options = ["--capacity-blocks", "6", "--policy", "lru"]
    rows = rows_of(capsys, str(trace), *options)
    packed = trace.with_name("packed")
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    assert rows_of(capsys, str(packed), *options) == rows
    for data in (trace.read_bytes(), packed.read_bytes()):
        stdin(data)
        assert rows_of(capsys, "-", *options) == rows


def test_a_packed_recording_is_replayed_and_is_a_trace(tmp_path, stdin, capsys):
    path = tmp_path / "run.jsonl"
    live(Rig(n_host=24, record_file=str(path), cost_gate=False), 1, 40, admitted=1)
    data = path.read_bytes()
    path.with_suffix(".gz").write_bytes(gzip.compress(data))
    assert main(["simulate", str(path.with_suffix(".gz"))]) == 0
    replayed = capsys.readouterr().out
    assert "0 decisions differ" in replayed
    stdin(data)
    assert main(["simulate", "-"]) == 0
    assert capsys.readouterr().out == replayed
    assert rows_of(capsys, str(path.with_suffix(".gz")), "--policy", "lru")[0]["hit_rate"] > 0


def test_what_is_not_whole_or_not_there_is_one_line(trace, stdin, capsys):
    trace.write_bytes(gzip.compress(trace.read_bytes())[:40])
    assert main(["simulate", str(trace)]) == 1
    assert capsys.readouterr().err.startswith(f"tenuto simulate: TRACE: {trace} is not whole gzip (")
    stdin(b"{\n")
    assert main(["simulate", "-"]) == 1
    assert capsys.readouterr().err.startswith("tenuto simulate: TRACE: /dev/stdin:1: ")
    assert main(["simulate", "-", "-"]) == 1
    assert "- is given twice" in capsys.readouterr().err


def test_unless_told_it_simulates_what_the_settings_are_unless_told(trace, capsys):
    tiers = Config().tiers
    assert Tiers(1) == Tiers(1, tiers.host.policy, 0, tiers.disk.policy, tiers.disk.admission)
    assert DEFAULT_POLICIES[0] == tiers.host.policy
    assert {row["policy"] for row in rows_of(capsys, str(trace), "--capacity-blocks", "6")} == set(DEFAULT_POLICIES)
    line = [str(trace), "--capacity-blocks", "6", "--policy", "lru", "--disk-blocks", "6"]
    told = ["--disk-policy", tiers.disk.policy, "--disk-admission", tiers.disk.admission]
    assert rows_of(capsys, *line) == rows_of(capsys, *line, *told)
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"of the disk tier; unless given {tiers.disk.policy!r}" in text
    assert f"which blocks are written to disk; unless given {tiers.disk.admission!r}" in text
    assert f"opt: the optimum; unless given {tiers.host.policy!r}" in text


def test_who_waits_long_is_told_once_how_long():
    now, told = [0.0], []
    watch = Watch(40, told.append, lambda: now[0])
    for _ in range(2):
        for _ in watch.over(range(20)):
            now[0] += 1
    assert told == ["15% of it in 6 s: about 40 s in all"]


def test_who_waits_a_moment_is_told_nothing(trace, capsys):
    assert main(["simulate", str(trace), "--capacity-blocks", "6", "--policy", "lru"]) == 0
    assert capsys.readouterr().err == ""
