"""The engines that are compared: one model, one set of options, another connector in each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tenuto.cli.bench.tinymodel import LlamaShape
from tenuto.config import in_mib
from tenuto.errors import ConfigError

LLAMA_8B = LlamaShape(
    n_layers=32, n_heads=32, n_kv_heads=8, head_dim=128, intermediate=14336, vocab=128256, max_positions=131072
)
TINY = LlamaShape(max_positions=8192)
_DISK_SHARE = 1.3
"""Our disk tier's capacity over what is kept there: headers, and files that are not full."""


@dataclass(frozen=True, slots=True)
class Model:
    """What all variants run. `folder`: holds config.json. Weights are made up by the engine when `is_dummy`."""

    folder: Path
    n_layers: int
    kv_bytes_per_token: int
    vocab: int
    dtype: str
    is_dummy: bool = True


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes of host memory, and of the disk tier under `folder`, which is off while it is 0.

    `has_gate`: of the variants "ours" and "ours_split"; the others say it by their names.
    """

    host_bytes: int
    folder: Path
    disk_bytes: int = 0
    block_tokens: int = 0
    has_gate: bool = True


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """vLLM's own: its KV cache in bytes, the longest sequence, how many of them run, tokens per page and per step.

    `plans_ahead`: asynchronous scheduling; None: as vLLM chooses.
    """

    kv_cache_bytes: int
    max_tokens: int
    max_running: int = 8
    page_tokens: int = 16
    is_eager: bool = False
    step_tokens: int = 8192
    plans_ahead: bool | None = None


def choose_model(given: Path | None, folder: Path, *, is_quick: bool) -> Model:
    """The model in the folder that was given; else Llama 3 8B's shape, or a tiny one, written to `folder`."""
    if given is not None:
        return read_model(given)
    return write_model(folder, TINY, "float32") if is_quick else write_model(folder, LLAMA_8B, "bfloat16")


def write_model(folder: Path, shape: LlamaShape, dtype: str) -> Model:
    """A folder with a config.json of this shape and no weights. `dtype`: "bfloat16" or "float32"."""
    folder.mkdir(parents=True, exist_ok=True)
    config = shape.config() | {"torch_dtype": dtype, "rope_theta": 500000.0}
    (folder / "config.json").write_text(json.dumps(config))
    return read_model(folder, is_dummy=True)


def read_model(folder: Path, *, is_dummy: bool = False) -> Model:
    """A model by its config.json: layers, KV heads, head size and type give the bytes of a token's keys and values.

    Raises `ConfigError` when it doesn't tell them.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        dtype: str = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        n_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        n_layers: int = config["num_hidden_layers"]
        n_bytes = 2 * n_layers * n_heads * head_dim * (4 if dtype == "float32" else 2)
        return Model(folder, n_layers, n_bytes, config["vocab_size"], dtype, is_dummy)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"--model: {folder / 'config.json'} can't be read as a language model's ({why})") from None


def engine_options(model: Model, sizes: EngineSizes, transfer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments of vLLM's `LLM`."""
    options: dict[str, Any] = {
        "model": str(model.folder), "dtype": model.dtype, "load_format": "dummy" if model.is_dummy else "auto",
        "skip_tokenizer_init": True, "block_size": sizes.page_tokens, "kv_cache_memory_bytes": sizes.kv_cache_bytes,
        "max_model_len": sizes.max_tokens, "max_num_seqs": sizes.max_running,
        "max_num_batched_tokens": sizes.step_tokens, "enable_prefix_caching": True,
        "distributed_executor_backend": "uni", "disable_log_stats": True,
        # Several engines share one GPU: what each takes is said in bytes, this is only checked against what is free.
        "gpu_memory_utilization": 0.1,
    }  # fmt: skip
    if sizes.is_eager:
        options["enforce_eager"] = True
    if sizes.plans_ahead is not None:
        options["async_scheduling"] = sizes.plans_ahead
    if transfer is not None:
        options["kv_transfer_config"] = dict(transfer)
    return options


def connector(name: str, storage: Storage) -> dict[str, Any] | None:
    """`kv_transfer_config` of a variant by its name; None for "off".

    "ours", "ours_disk" (all hits are loaded), "ours_gate" (only where that pays), "ours_split" (layer by layer, as much
    as pays); "native" is vLLM's OffloadingConnector, "native_disk" its tiering with the file-system tier, both at their
    defaults; "lmcache".
    """
    match name:
        case "off":
            return None
        case "ours" | "ours_disk" | "ours_gate" | "ours_split":
            extra = _ours(name, storage if name != "ours" else replace(storage, disk_bytes=0))
            return _transfer("TenutoConnector", extra) | {"kv_connector_module_path": "tenuto.connectors.vllm"}
        case "native":
            return _transfer("OffloadingConnector", {"cpu_bytes_to_use": storage.host_bytes})
        case "native_disk":
            tier = {"type": "fs", "root_dir": str(storage.folder)}
            extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": storage.host_bytes}
            return _transfer("OffloadingConnector", extra | {"secondary_tiers": [tier]})
        case "lmcache":
            return _transfer("LMCacheConnectorV1", {})
        case _:
            raise ValueError(f"no variant is named {name!r}")


def is_there(name: str) -> bool:
    """Whether what the variant needs is installed."""
    return name != "lmcache" or find_spec("lmcache") is not None


def lmcache_environment(host_bytes: int) -> dict[str, str]:
    """LMCache reads its settings from the environment: the same host memory as the others."""
    return {"LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": f"{host_bytes / 2**30:.1f}"}


def _ours(name: str, storage: Storage) -> dict[str, Any]:
    tiers: dict[str, Any] = {"host": {"capacity": in_mib(storage.host_bytes)}}
    if storage.disk_bytes:
        capacity = in_mib(int(storage.disk_bytes * _DISK_SHARE))
        tiers["disk"] = {"path": str(storage.folder), "capacity": capacity}
    runtime: dict[str, Any] = {"cost_gate": {"ours_disk": False, "ours_gate": True}.get(name, storage.has_gate)}
    if name == "ours_split":
        runtime["onboard"] = "auto"
    return {"layout": {"block_tokens": storage.block_tokens}, "tiers": tiers, "runtime": runtime}


def _transfer(connector_name: str, extra: dict[str, Any]) -> dict[str, Any]:
    return {"kv_connector": connector_name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
