"""Where a random life takes place: an engine whose memory is too small, and tiers too small below it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.tiny import Engine

EXTENT_BYTES = 139264


@dataclass(frozen=True, slots=True)
class World:
    """Where a life takes place."""

    n_pages: int = 48
    n_waiting: int = 12
    """Unfinished requests at once, at most."""
    longest: int = 900
    """Tokens of a prompt, at most."""
    is_exact: bool = True
    """Outputs must be a cold engine's; else they are counted, since batches of another shape may round otherwise."""
    running_reset_chance: float = 0.02
    """That before a step all running requests are preempted and the engine's prefix cache is emptied."""
    connector_reset_chance: float = 0.02
    """That before a step, while something loads, our cache is emptied."""
    settings: dict[str, Any] = field(default_factory=lambda: settings(EXTENT_BYTES))
    options: dict[str, Any] = field(default_factory=lambda: {"max_model_len": 1024, "max_num_batched_tokens": 160})
    cold_options: dict[str, Any] = field(
        default_factory=lambda: {"max_num_seqs": 32, "kv_cache_memory_bytes": 64 << 20}
    )


def settings(
    extent_bytes: int, n_host_slots: int = 24, disk_bytes: int = 12 << 20, load_timeout_s: float = 0.25
) -> dict[str, Any]:
    """The connector's: tiers too small for a life."""
    return {
        "tiers": {"host": {"capacity": n_host_slots * extent_bytes}, "disk": {"capacity": disk_bytes}},
        "runtime": {"retry_s": 0.05, "load_timeout_s": load_timeout_s, "write_window": 8 * extent_bytes},
    }


def make_engine(model: Path, root: Path, world: World) -> Engine:
    """The engine of a life."""
    options = {"num_gpu_blocks_override": world.n_pages, "enable_chunked_prefill": True} | world.options
    return Engine(model, root, world.settings, **options)


def chosen(figures: dict[str, Any]) -> dict[str, Any]:
    """The leader's figures that tell what happened."""
    names = ("moved.", "failed.", "host.", "disk.", "skipped.", "tokens.", "loads")
    return {name: value for name, value in sorted(figures.items()) if name.startswith(names)}


def quiet_vllm() -> None:
    """An engine in this process, on one thread, that says little and asks nobody."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="ERROR",
    )  # fmt: skip
    logging.getLogger("tenuto").setLevel(logging.ERROR)
