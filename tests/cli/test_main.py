"""What all commands have in common: folders, and an output that refuses what is printed."""

import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tenuto
from tenuto.cli.folders import chosen_folder
from tenuto.cli.main import main
from tenuto.errors import ConfigError

pytestmark = pytest.mark.unit

SOURCE = Path(tenuto.__file__).parents[1]


@pytest.fixture
def started(root, open_disk):
    """Starts the command in a disk root, with this output."""
    open_disk(1).close()
    processes = []

    def start(arguments, output):
        words = [sys.executable, "-m", "tenuto.cli.main", *arguments]
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": ""}
        process = subprocess.Popen(words, cwd=root, env=environment, stdout=output, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [(["config", "--config"], "config"), (["inspect"], "DIR"), (["doctor", "--path"], "--path"),
     (["bench", "hash", "--dir"], "--dir")],
)  # fmt: skip
def test_a_folder_in_nobodys_home_is_one_line(capsys, arguments, setting):
    assert main([*arguments, "~nobody-here/x"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tenuto {arguments[0]}: {setting}: '~nobody-here/x': no home folder is known")


def test_without_a_home_the_folder_must_be_given(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with pytest.raises(ConfigError, match=r"^--dir: "):
        chosen_folder(None, "--dir", "demo")


@pytest.mark.parametrize("arguments", [["config"], ["--help"], ["inspect", "."]])
def test_an_output_that_nobody_reads_is_no_matter(started, arguments):
    process = started(arguments, subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


@pytest.mark.parametrize("arguments", [["config"], ["--help"], ["inspect", "."]])
def test_an_output_that_is_full_is_one_line(started, arguments):
    with Path("/dev/full").open("w") as full:
        process = started(arguments, full)
    assert process.stderr.read() == "tenuto: standard output: No space left on device\n"
    assert process.wait() == 1


def test_an_output_that_takes_no_such_letters_is_given_others(monkeypatch):
    shown = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    assert main(["config", "--disk", "/ü/\U0001f600"]) == 0
    assert tomllib.loads(shown.buffer.getvalue().decode())["tiers"]["disk"]["path"] == "/ü/\U0001f600"
    monkeypatch.setattr("tenuto.cli.serve.command.find_program", lambda model: ["vllm", model])
    assert main(["serve", "ü", "--disk", "/ü", "--dry-run"]) == 0


def test_no_command_brings_the_tiers_before_it_needs_them():
    code = "import sys, tenuto.cli.main; print([name for name in ('numpy', 'torch', 'sqlite3') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
