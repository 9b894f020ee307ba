"""Only interchangeable blocks are shared: models, processes, hash seeds, settings."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tenuto.errors import ConfigError
from tests.engine.tiny import make_model, prompt

pytestmark = pytest.mark.engine

TOKENS = prompt(30, 300)
REPOSITORY = Path(__file__).resolve().parents[2]


def ask_in_a_process(model, root, *, seed=None, multiprocessing="0"):
    """What a fresh process with this PYTHONHASHSEED gets for the prompt, and its statistics."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
    if seed is not None:
        environment["PYTHONHASHSEED"] = seed
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = multiprocessing
    command = [sys.executable, "-m", "tests.engine.ask", model, root]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_engines_share_their_blocks_whatever_the_hash_seed_and_the_processes(start, model, tmp_path):
    root = tmp_path / "root"
    first, output = ask_in_a_process(model, root, seed="0", multiprocessing="1")  # also hits its host memory
    assert first == 0
    engine = start()
    assert engine.ask(TOKENS) == (256, output)
    engine.settle()
    for seed in ("1", None):
        assert ask_in_a_process(model, root, seed=seed) == [256, output]  # while the other one lives


def test_blocks_of_other_weights_dtypes_and_block_sizes_are_never_matched(start, tmp_path):
    model = make_model(tmp_path / "model", seed=1)
    engine = start(on=model)
    cold = engine.ask(TOKENS)
    engine.settle()
    assert start(on=model).ask(TOKENS) == (256, cold[1])
    assert start(on=model, dtype="bfloat16").ask(TOKENS)[0] == 0
    assert start({"layout": {"block_tokens": 32}}, on=model).ask(TOKENS)[0] == 0
    assert start(on=make_model(tmp_path / "other", seed=2)).ask(TOKENS)[0] == 0
    weights = model / "model.safetensors"
    before = weights.stat()
    make_model(model, seed=3)  # trained on in place
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_size == before.st_size
    assert start(on=model).ask(TOKENS)[0] == 0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"tiers": {"dsk": {}}}, r"tiers\.dsk: unknown setting; did you mean tiers\.disk\?"),
        ({"tiers": {"host": {"capacity": "lots"}}}, r"tiers\.host\.capacity: 'lots' is not a size; write it as"),
        (
            {"tiers": {"host": {"capacity": "1 KiB"}}},
            r"tiers\.host\.capacity: .* no room for one block of .*; give at least",
        ),
        ({"tiers": {"disk": {"path": "/proc/nowhere"}}}, r"tiers\.disk\.path: can't write to /proc/nowhere .*choose"),
        (
            {"tiers": {"disk": {"capacity": "4 KiB"}}},
            r"tiers\.disk\.capacity: .* no room for one block of .*; give at least",
        ),
        ({"layout": {"block_tokens": 48}}, r"layout\.block_tokens: 48 is not a multiple of the engine's block of 32"),
    ],
)
def test_a_wrong_setting_is_one_clear_line_at_start(start, settings, line):
    with pytest.raises(ConfigError, match=line) as raised:
        start(settings)
    assert "\n" not in str(raised.value)


def test_a_users_name_for_weights_is_never_taken_for_a_fingerprint_nor_given_to_dummy_weights(tmp_path):
    from tenuto.connectors.vllm.translate import _weights

    def told(name, load_format="auto"):
        model = SimpleNamespace(model=str(tmp_path), seed=3)
        return _weights(SimpleNamespace(model_config=model, load_config=SimpleNamespace(load_format=load_format)), name)

    (tmp_path / "model.safetensors").write_bytes(b"weights")
    found = told("auto")
    assert found.startswith("files:")
    assert told(found) == f"named:{found}"
    assert told("one") != told("two")
    assert told("one", "dummy") == told("auto", "dummy") == "dummy:3"
