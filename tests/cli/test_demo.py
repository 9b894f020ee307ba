"""The demo without its engine: what it asks, how it listens to a child, what it concludes."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tenuto.cli.demo import command, model, process, report, text
from tenuto.cli.demo.messages import Begin, Facts, Job, Run, decode_event, decode_job, encode
from tenuto.cli.demo.outcome import Outcome
from tenuto.cli.main import main
from tenuto.errors import ConfigError, TenutoError

pytestmark = pytest.mark.unit


def run(question=0, name="cold", reused=0, ids=(1, 2), ttft_s=10.0):
    return Run(question, name, 100, reused, 1000, ttft_s, ids, "an answer")


def outcome(*runs):
    return Outcome(Facts("an engine", 1), runs)


@pytest.fixture
def good():
    return outcome(
        run(),
        *(run(question, "host", 96, ttft_s=0.5) for question in range(3)),
        run(0, "disk", 96, ttft_s=0.25),
        *(run(question, "engine", 96, ttft_s=0.1) for question in (1, 2)),
    )


def child(tmp_path, monkeypatch, code):
    """Events of a child that runs `code` instead of a stage."""
    monkeypatch.setattr(sys, "executable", make_script(tmp_path, code))
    return process.run_child(Job("first", "m", "kv"), tmp_path / "log")


def make_script(tmp_path: Path, code: str) -> str:
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\n{code}\n")
    script.chmod(0o755)
    return str(script)


def test_the_context_is_the_whole_text_without_remarks():
    context = text.read_context()
    assert context.startswith("We the People of the United States, in Order to form")
    assert context.endswith("between the States so ratifying the Same.")
    assert "\n# " not in context
    assert len(context.split()) > 4000


def test_all_questions_share_the_context_as_a_prefix():
    first, second = (text.chat(question, "context") for question in text.QUESTIONS[:2])
    assert first[0] == second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize("event", [Begin("x"), run(), Facts("e", 2)])
def test_an_event_survives_its_line(event):
    line = encode(event)
    assert "\n" not in line
    assert decode_event(line) == event


def test_a_job_survives_its_line():
    job = Job("second", "model", "kv")
    assert decode_job(encode(job)) == job


def test_a_good_outcome_has_no_fault(good):
    assert good.fault() is None
    assert good.speedup(good.find(0, "disk")) == 40


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([run(reused=5)], "was not cold"),
        ([run(), run(0, "host", 0)], "question 1: no host hit: 0 of 100"),
        ([run(), run(0, "disk", 96, ids=(1, 3))], "the disk answer differs from the cold one"),
    ],
)
def test_a_missing_hit_or_another_answer_is_a_fault(runs, said):
    assert said in (outcome(*runs).fault() or "")


def test_json_has_the_three_runs_and_every_question(good):
    shown = json.loads(json.dumps(good.as_json()))
    assert [r["name"] for r in shown["runs"]] == ["cold", "host", "disk"]
    assert set(shown["runs"][0]) == {
        "name",
        "prompt_tokens",
        "reused_tokens",
        "loaded_bytes",
        "ttft_s",
        "output_ids",
    }
    assert [q["question"] for q in shown["questions"]] == list(text.QUESTIONS)
    assert shown["speedup"] == {"host": 20.0, "disk": 40.0}
    assert shown["same_output"] is True


def test_the_report_shows_every_run(good):
    console = Console(width=80, record=True, file=io.StringIO())
    report.show(good, console)
    shown = console.export_text()
    assert shown.count("host hit") == 4  # three rows and a bar
    assert "40.0×" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_without_a_terminal_each_step_is_one_line(capsys):
    with report.Steps(Console(force_terminal=False)) as steps:
        steps.begin("one")
        steps.begin("two")
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["one", "two"]


def test_events_come_as_the_child_sends_them(tmp_path, monkeypatch):
    line = encode(Begin("something"))
    assert list(child(tmp_path, monkeypatch, f"print({line!r})")) == [Begin("something")]


def test_a_failing_child_is_one_line_with_its_own_error(tmp_path, monkeypatch):
    code = "import sys; print('ValueError: too small\\ngoodbye', file=sys.stderr); sys.exit(3)"
    with pytest.raises(TenutoError, match=r"exit code 3: ValueError: too small; see .*log"):
        list(child(tmp_path, monkeypatch, code))


def test_a_killed_child_is_named(tmp_path, monkeypatch):
    with pytest.raises(TenutoError, match="killed by SIGKILL"):
        list(child(tmp_path, monkeypatch, "import os; os.kill(os.getpid(), 9)"))


def test_a_child_that_says_something_else_is_refused(tmp_path, monkeypatch):
    with pytest.raises(TenutoError, match="said 'hello"):
        list(child(tmp_path, monkeypatch, "print('hello')"))


def test_a_child_that_hangs_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "STAGE_TIMEOUT_S", 0.1)
    with pytest.raises(TenutoError, match="took more than"):
        list(child(tmp_path, monkeypatch, "import time; time.sleep(60)"))


def test_leaving_early_ends_the_child(tmp_path, monkeypatch):
    said = '{"type":"begin","what":"%d"}'
    code = f"import os, time; print({said!r} % os.getpid(), flush=True); time.sleep(60)"
    events = child(tmp_path, monkeypatch, code)
    pid = int(next(events).what)
    events.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_second_ctrl_c_ends_the_waiting_for_the_child_and_not_its_killing(tmp_path, monkeypatch):
    said = '{"type":"begin","what":"%d"}'
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = f"{deaf}; import os, time; print({said!r} % os.getpid(), flush=True); time.sleep(60)"
    events = child(tmp_path, monkeypatch, code)
    pid = int(next(events).what)
    wait, n_waits = subprocess.Popen.wait, []

    def interrupted(popen, timeout=None):
        n_waits.append(timeout)
        if len(n_waits) == 1:
            raise KeyboardInterrupt
        return wait(popen, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        events.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_environment_of_a_child_keeps_what_the_user_set():
    given = {"OMP_NUM_THREADS": "7", "HOME": "/root"}
    made = process.child_environment(given)
    assert made["OMP_NUM_THREADS"] == "7"
    assert made["HF_HUB_OFFLINE"] == "1"
    assert int(process.child_environment({})["OMP_NUM_THREADS"]) >= 1


def test_a_missing_package_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(command, "NEEDED", ("rich", "no_such_package"))
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "tenuto demo: missing: no_such_package; run `make install`, or install the lists in "
        "requirements/ with --no-deps\n"
    )


def test_missing_weights_are_one_line(monkeypatch):
    monkeypatch.setattr(model, "DISTRIBUTION", "no-such-distribution")
    with pytest.raises(ConfigError, match="no-such-distribution is missing"):
        model.find_weights()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "_check_packages", lambda: None)
    (tmp_path / "file").touch()
    assert main(["demo", "--dir", str(tmp_path / "file" / "x")]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "--dir: cannot write" in line


def test_two_demos_do_not_share_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "_check_packages", lambda: None)
    with command._locked(tmp_path):
        assert main(["demo", "--dir", str(tmp_path)]) == 1
    assert "another demo is using" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_one_line_and_ends_the_child(tmp_path, number):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    script = make_script(
        tmp_path,
        f"import os, time; open({str(ready)!r}, 'w').write(str(os.getpid())); time.sleep(60)",
    )
    code = (
        "import sys; from pathlib import Path; from tenuto.cli.demo import command, model; "
        "from tenuto.cli.main import main; "
        f"sys.executable = {script!r}; command._check_packages = lambda: None; "
        "model.folder_in = lambda cache: cache; model.is_written = lambda folder: True; "
        f"sys.exit(main(['demo', '--dir', {str(tmp_path / 'demo')!r}]))"
    )
    demo = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        # A background shell's children ignore the interrupt; a person's do not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    pid = int(ready.read_text())  # blocks until the child is there
    demo.send_signal(number)
    _, said = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert said.splitlines()[-1] == "tenuto demo: interrupted"
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
