"""One source serves two versions of vLLM: what they lack is told by its absence."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tenuto.connectors.vllm import versions

pytestmark = pytest.mark.engine

REPOSITORY = Path(__file__).resolve().parents[2]
OLD_VLLM = REPOSITORY / ".venv" / "vllm-0.27.1"
ESSENTIALS = (
    "test_a_forgotten_prompt_comes_back_from_host_memory", "test_a_restarted_engine_finds_its_prompts_on_disk",
    "test_a_prompt_of_whole_blocks", "test_what_the_engine_still_has", "test_generated_tokens_are_kept_too",
    "test_a_salt", "test_prompt_logprobs", "test_a_reset_forgets", "test_a_request_that_is_aborted_while_it_loads",
)  # fmt: skip


def run_python(version, *command, timeout_s=580):
    """What a Python process prints that imports this version of vLLM."""
    path = [REPOSITORY / "src", REPOSITORY]
    if version == "0.27.1":
        assert (OLD_VLLM / "vllm").is_dir(), f"{OLD_VLLM} is missing: run `make install`"
        path.insert(0, OLD_VLLM)
    done = subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout_s, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(600)
def test_prompts_come_back_on_the_oldest_vllm_too():
    import_line = "import vllm, tenuto.connectors.vllm; print(vllm.__version__)"
    assert run_python("0.27.1", "-c", import_line).split()[-1].startswith("0.27.1")
    chosen = f"({' or '.join(ESSENTIALS)}) and not float16 and not chunked"
    tests = ("tests/engine/test_hits.py", "-k", chosen)
    assert "10 passed" in run_python("0.27.1", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def test_a_spec_without_a_v_size_has_one_size_for_both():
    assert versions.row_sizes(SimpleNamespace(head_size=64)) == (64, 64)
    assert versions.row_sizes(SimpleNamespace(head_size=64, head_size_v=32)) == (64, 32)


def test_an_option_that_a_version_lacks_is_off():
    bare = SimpleNamespace(cache_config=SimpleNamespace(), parallel_config=SimpleNamespace())
    assert not versions.measures_scales(bare)
    assert versions.prefill_context_parallel_size(bare) == 1
    full = SimpleNamespace(
        cache_config=SimpleNamespace(calculate_kv_scales=True),
        parallel_config=SimpleNamespace(prefill_context_parallel_size=2),
    )
    assert versions.measures_scales(full)
    assert versions.prefill_context_parallel_size(full) == 2


def test_only_streamed_requests_may_change():
    assert not versions.may_change(SimpleNamespace())
    assert versions.may_change(SimpleNamespace(resumable=True))


def test_a_failure_policy_is_set_once_where_there_is_one():
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_load_failure_policy="fail"))
    assert versions.set_to_recompute(config)
    assert config.kv_transfer_config.kv_load_failure_policy == "recompute"
    assert not versions.set_to_recompute(config)
    assert not versions.set_to_recompute(SimpleNamespace(kv_transfer_config=SimpleNamespace()))
