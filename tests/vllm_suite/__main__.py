"""vLLM's own connector tests, twice: with vLLM's connectors, and with ours in their place.

`python -m tests.vllm_suite [--version V] [--overlay FOLDER] [--out FOLDER] [-- PYTEST ARGUMENTS]`
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.vllm_suite.fetch import Sources
from tests.vllm_suite.models import make_models
from tests.vllm_suite.verdicts import summarise, table

HERE = Path(__file__).resolve().parent
UNIT = "tests/v1/kv_connector/unit/"
FILES = (
    "tests/v1/core/test_scheduler.py",
    "tests/v1/core/test_async_scheduler.py",
    "tests/v1/core/test_deferred_block_free.py",
    "tests/v1/core/test_priority_preemption_bug.py",
    "tests/v1/core/test_reset_prefix_cache_e2e.py",
    UNIT + "test_kv_connector_lifecycle.py",
    UNIT + "test_kv_load_failure_recovery.py",
    UNIT + "test_invalid_blocks_correctness.py",
    UNIT + "test_cache_pollution_prevention.py",
    UNIT + "test_error_propagation.py",
    UNIT + "test_config.py",
    UNIT + "test_hma_auto_config.py",
    UNIT + "test_output_aggregator.py",
    UNIT + "test_scheduler_kv_connector_override.py",
    UNIT + "test_handshake_pp_aggregation.py",
    UNIT + "test_decode_bench_connector.py",
    UNIT + "test_multi_connector.py",
    "tests/v1/worker/test_gpu_kv_connector.py",
    "tests/v1/attention/test_cpu_mla_backend.py",
)
"""What runs without a GPU and takes a connector; other files skip without CUDA or ask for one library's connector."""

TEST_SECONDS = 120
ENGINE = {
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # engines in pytest's process, where the factory is ours
}  # fmt: skip


def run(sources: Sources, connector: str, overlay: Path | None, arguments: list[str]) -> list[dict[str, Any]]:
    """One pytest run in the unpacked tree: the recorder's lines."""
    record = sources.tree / f"{connector}.jsonl"
    shutil.rmtree(sources.tree / "stored", ignore_errors=True)
    paths = [overlay and overlay.resolve(), HERE.parents[1] / "src", HERE, sources.site]
    command = [
        sys.executable, "-m", "pytest", "-c", str(HERE / "suite.ini"), "--rootdir", ".", "-p", "suite_plugin",
        "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", "-q", "--tb", "no", "--timeout", str(TEST_SECONDS),
        "--connector", connector, "--engine", sources.version, "--record", str(record), *arguments,
    ]  # fmt: skip
    environment = os.environ | ENGINE | {"PYTHONPATH": os.pathsep.join(str(path) for path in paths if path)}
    with (sources.tree / f"{connector}.log").open("w") as log:
        code = subprocess.run(
            command, cwd=sources.tree, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    if code not in (0, 1):
        last = Path(log.name).read_text().strip().rpartition("\n")[2]
        raise SystemExit(f"pytest ended with {code} for the {connector} connector: {last} ({log.name})")
    return [json.loads(line) for line in record.read_text().splitlines()]


def main() -> int:
    """Fetch, run twice, write the summary, print the table. 1 when a test fails because of us."""
    parser = argparse.ArgumentParser(prog="tests.vllm_suite", description=__doc__)
    parser.add_argument("--version", default="0.32.0", help="vLLM's version; its archive is pinned in requirements")
    parser.add_argument("--overlay", type=Path, help="folder with that vLLM, if it is not the installed one")
    parser.add_argument("--out", type=Path, help="folder for the JSON summary")
    parser.add_argument("pytest", nargs="*", help="files and options for pytest instead of the whole list")
    options = parser.parse_args()
    sources = Sources(Path(sys.prefix) / "vllm-suite", options.version)
    sources.fetch()
    make_models(sources.tree)
    files = options.pytest or [file for file in FILES if (sources.tree / file).is_file()]
    stock, ours = (run(sources, connector, options.overlay, files) for connector in ("stock", "tenuto"))
    summary = summarise(stock, ours)
    print(table(summary))
    for verdict, reasons in summary["reasons"].items():
        for reason, tests in reasons.items():
            print(f"{verdict}: {len(tests)}: {reason}")
    if options.out:
        told = {
            "name": "vllm-suite",
            "versions": {"vllm": options.version, "tenuto": version("tenuto"), "python": sys.version.split()[0]},
            "command": " ".join(["python -m tests.vllm_suite", *sys.argv[1:]]),
            "date": datetime.now(UTC).date().isoformat(),
        }
        path = options.out / f"vllm-suite-{options.version}.json"
        path.write_text(json.dumps(told | summary, indent=2) + "\n")
    return 1 if "fault" in summary["reasons"] else 0


if __name__ == "__main__":
    sys.exit(main())
