"""Engines together, as small scripts in real processes: what fails is left out, and nothing outlives the bench."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tenuto.cli.bench.engines import process
from tenuto.cli.bench.engines.budget import Budget
from tenuto.cli.bench.engines.fleet import Fleet
from tenuto.cli.bench.engines.process import Child
from tenuto.errors import TenutoError

pytestmark = pytest.mark.unit

CHILD = """
import json, os, signal, subprocess, sys, time

def say(**reply):
    print(json.dumps(reply), flush=True)

start = json.loads(sys.stdin.readline())
do = start["options"].get("do")
if do == "die":
    sys.exit("ValueError: no such model")
if do == "babble":
    print("hello", flush=True)
    time.sleep(600)
if do in ("stubborn", "slow"):
    family = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # holds our standard output
    with open(start["options"]["pids"], "w") as file:
        print(os.getpid(), family.pid, file=file)
if do == "slow":
    time.sleep(600)
say(type="ready", versions={"vllm": "1"}, gpu="none")
for line in sys.stdin:
    request = json.loads(line)
    if do == "stubborn":
        time.sleep(600)
    if request["type"] == "stop":
        say(type="done", seconds=0.0)
        break
    say(type="done", seconds=1.0)
"""
PARENT = """
import signal, sys, time
from pathlib import Path
from tenuto.cli.bench.engines import process
from tenuto.cli.bench.engines.budget import Budget
from tenuto.cli.bench.engines.fleet import Fleet

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
child, folder, mode = sys.argv[1:]
process.COMMAND = (sys.executable, child)
do = {"starting": "slow"}.get(mode, "stubborn")
with Fleet(Path(folder), Budget(9.0)) as fleet:
    fleet.start({"off": {"do": do, "pids": folder + "/pids"}}, 9, environment={}, is_alone=False)
    print("now", flush=True)
    if mode == "asking":
        fleet["off"].settle()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    monkeypatch.setattr(process, "COMMAND", (sys.executable, str(path)))
    return path


def start(fleet, *, is_alone=False, **what):
    fleet.start({name: {"do": do} for name, do in what.items()}, 9, environment={}, is_alone=is_alone)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("is_alone", [False, True])
def test_an_engine_that_dies_before_its_first_line_is_left_out_with_its_reason(script, tmp_path, capsys, is_alone):
    with Fleet(tmp_path, Budget(9.0)) as fleet:
        start(fleet, off="serve", ours="die", native="serve", is_alone=is_alone)
        assert fleet.alive(["off", "ours", "native"]) == ["off", "native"]
        assert fleet.left_out == {"ours": "engine ours ended (code 1): ValueError: no such model"}
        assert fleet["native"].settle() == 1.0
    said = capsys.readouterr().err
    assert "--- the log of engine ours ends:\nValueError: no such model\n" in said
    assert "ours is left out: engine ours ended (code 1): ValueError: no such model" in said


def test_an_engine_that_never_reads_what_it_is_to_be_is_left_out_too(script, tmp_path, monkeypatch):
    with Fleet(tmp_path, Budget(9.0)) as fleet:
        start(fleet, off="serve")
        monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", "import sys; sys.exit('OSError: no library')"))
        fleet.start({"ours": {"pad": "x" * (1 << 20)}}, 9, environment={}, is_alone=False)
        assert fleet.left_out == {"ours": "engine ours ended (code 1): OSError: no library"}
        assert fleet["off"].settle() == 1.0


@pytest.mark.parametrize("what", ["program", "log"])
def test_an_engine_that_can_not_be_started_is_left_out_too(script, tmp_path, monkeypatch, what):
    with Fleet(tmp_path, Budget(9.0)) as fleet:
        start(fleet, off="serve")
        if what == "program":
            monkeypatch.setattr(process, "COMMAND", ("/nowhere/python",))
        else:
            (tmp_path / "ours.log").mkdir()
        start(fleet, ours="serve")
        (why,) = fleet.left_out.values()
        assert why.startswith("engine ours: can't be started: ")
        assert fleet.alive(["off", "ours"]) == ["off"]


@pytest.mark.parametrize("do", ["die", "babble"])
def test_without_the_one_that_all_are_compared_with_the_run_ends(script, tmp_path, monkeypatch, do):
    monkeypatch.setattr(Child.close, "__defaults__", (0.3,))
    with pytest.raises(TenutoError, match=r"^engine off "), Fleet(tmp_path, Budget(9.0)) as fleet:
        start(fleet, ours="serve", off=do)
    assert fleet.alive(["off", "ours"]) == []


def test_who_does_not_end_is_killed_with_all_that_it_has_started_and_it_is_said(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Child.close, "__defaults__", (0.3,))
    pids = tmp_path / "pids"
    with Fleet(tmp_path, Budget(9.0)) as fleet:
        fleet.start({"off": {}, "ours": {"do": "stubborn", "pids": str(pids)}}, 9, environment={}, is_alone=False)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    for pid in pids.read_text().split():
        wait_until(lambda pid=pid: not is_running(pid))
    said = capsys.readouterr().err
    assert "ending off, ours" in said
    assert [line.split("] ")[1] for line in said.splitlines() if "killed" in line] == [
        f"ours did not end in {process.END_TIMEOUT_S:.0f} s: killed"
    ]


def test_an_answer_that_does_not_come_is_not_waited_for_though_others_hold_the_pipe(script, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "ANSWER_TIMEOUT_S", 0.3)
    pids = tmp_path / "pids"
    with Fleet(tmp_path, Budget(9.0)) as fleet:
        fleet.start({"off": {"do": "stubborn", "pids": str(pids)}}, 9, environment={}, is_alone=False)
        with pytest.raises(TenutoError, match="engine off: no answer in 0 s"):
            fleet["off"].settle()
    for pid in pids.read_text().split():
        wait_until(lambda pid=pid: not is_running(pid))


@pytest.mark.parametrize("n_signals", [1, 3])
@pytest.mark.parametrize("mode", ["starting", "asking", "ending"])
def test_ctrl_c_kills_all_at_once_however_often(script, tmp_path, mode, n_signals):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(script), str(tmp_path), mode],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        pids = tmp_path / "pids"
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        if mode != "starting":
            assert parent.stdout.readline() == "now\n"
        time.sleep(0.2)
        began = time.monotonic()
        for _ in range(n_signals):
            os.kill(parent.pid, signal.SIGINT)
            time.sleep(0.01)
        parent.communicate(timeout=20)
        assert time.monotonic() - began < 6
        assert parent.returncode != 0
        for pid in pids.read_text().split():
            wait_until(lambda pid=pid: not is_running(pid))
    finally:
        parent.kill()
        parent.communicate()
        for pid in (tmp_path / "pids").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
