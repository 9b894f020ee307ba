"""Every file in examples/ runs, and is as short as it is said to be."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.adapter

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))
MOST_LINES = {"library.py": 20, "generate.py": 50, "watch_events.py": 100}
"""Lines of code: without blank lines, comments and the docstring."""


def lines_of_code(path):
    text = path.read_text("utf-8").split('"""', 2)[2]
    return [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_runs(tmp_path, name):
    run = subprocess.run(
        [sys.executable, EXAMPLES / name, tmp_path / "folder"], capture_output=True, text=True, check=False, timeout=240
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Traceback" not in run.stderr


def test_a_second_turn_finds_what_the_first_has_generated():
    run = subprocess.run([sys.executable, EXAMPLES / "generate.py"], capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == ["first turn: 100 tokens, 99 computed", "second turn: 123 tokens, 26 computed"]


def test_the_librarys_example_says_what_it_wants():
    run = subprocess.run([sys.executable, EXAMPLES / "library.py"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (1, "Give a folder for the disk: python library.py FOLDER\n")


@pytest.mark.parametrize("name", MOST_LINES)
def test_an_example_is_short(name):
    assert len(lines_of_code(EXAMPLES / name)) <= MOST_LINES[name]


def test_the_librarys_example_needs_numpy_alone(tmp_path):
    """As where nothing but tenuto's own dependencies is installed."""
    absent = ["torch", "triton", "vllm", "transformers"]
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({absent})); del sys.argv[0]; runpy.run_path(sys.argv[0])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, EXAMPLES / "library.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "32 prompts came back whole" in run.stdout
