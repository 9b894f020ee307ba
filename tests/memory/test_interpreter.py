"""The kernels' tests in Triton's interpreter, in a process of their own: vLLM's CPU build must not see a Triton."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.adapter

REPOSITORY = Path(__file__).resolve().parents[2]
TRITON = REPOSITORY / ".venv" / "triton-3.6.0"


def test_the_kernels_are_bit_exact_in_the_interpreter():
    assert (TRITON / "triton").is_dir(), f"{TRITON} is missing: run `make install`"
    path = os.pathsep.join(map(str, (TRITON, REPOSITORY / "src", REPOSITORY)))
    options = ("-q", "-m", "kernels", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/memory/test_movers.py"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False,
        env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    passed = int(done.stdout.rsplit(" passed", 1)[0].split()[-1])
    assert passed > 200
