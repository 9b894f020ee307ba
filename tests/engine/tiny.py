"""A tiny Llama with random weights whose greedy output varies, and real engines on it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tenuto.cli.bench.tinymodel import LlamaShape, make_llama

SHAPE = LlamaShape(n_layers=4, n_kv_heads=2, head_dim=32, vocab=512)
PAGE_TOKENS = 32
BLOCK_TOKENS = 64


def make_model(folder: Path, *, seed: int = 0) -> Path:
    """Write config and weights of a 4-layer Llama in float32; same seed, same weights."""
    return make_llama(folder, SHAPE, seed=seed)


def prompt(seed: int, n_tokens: int) -> list[int]:
    """Random token ids."""
    rng = random.Random(seed)
    return [rng.randrange(3, SHAPE.vocab) for _ in range(n_tokens)]


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with nested `changes`."""
    result = dict(base)
    for key, value in changes.items():
        result[key] = merged(base[key], value) if isinstance(value, dict) and key in base else value
    return result


def vllm_options(root: Path, tenuto: dict[str, Any] | None = None) -> dict[str, Any]:
    """vLLM's settings for the tiny model with our connector; `tenuto` changes the connector's."""
    settings = merged(
        {
            "layout": {"block_tokens": BLOCK_TOKENS},
            "tiers": {"host": {"capacity": "64 MiB"}, "disk": {"path": str(root), "capacity": "256 MiB"}},
            "runtime": {"cost_gate": False},  # this model computes sooner than anything loads
        },
        tenuto or {},
    )
    return {
        "skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32", "block_size": PAGE_TOKENS,
        "kv_cache_memory_bytes": 16 << 20, "max_model_len": 2048, "max_num_seqs": 8,
        "distributed_executor_backend": "uni", "disable_log_stats": False,
        "kv_transfer_config": {
            "kv_connector": "TenutoConnector", "kv_connector_module_path": "tenuto.connectors.vllm",
            "kv_role": "kv_both", "kv_connector_extra_config": settings,
        },
    }  # fmt: skip


class Engine:
    """A real vLLM engine with our connector. `tenuto` changes the connector's settings, `options` vLLM's."""

    def __init__(self, model: Path, root: Path, tenuto: dict[str, Any] | None = None, **options: Any) -> None:
        from vllm import LLM

        try:
            self.llm = LLM(model=str(model), **(vllm_options(root, tenuto) | options))
        except Exception:
            _end_vllm()
            raise

    @property
    def core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def kv_tensors(self) -> list[Any]:
        """The engine's KV cache, one tensor per layer, in layer order."""
        return self.core.model_executor.driver_worker.worker.model_runner.kv_caches

    @property
    def leader(self) -> Any:
        return self.scheduler.connector.leader

    @property
    def worker(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().worker

    def generate(self, *prompts: list[int], n_tokens: int = 12, **more: Any) -> list[Any]:
        """Greedy requests in one batch: their `RequestOutput`s."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True, detokenize=False)
        for key in [key for key in more if key != "cache_salt"]:
            setattr(params, key, more.pop(key))
        return self.llm.generate([{"prompt_token_ids": p, **more} for p in prompts], params, use_tqdm=False)

    def ask(self, prompt: list[int], **more: Any) -> tuple[int, list[int]]:
        """One request: (tokens that were not computed, output ids)."""
        (output,) = self.generate(prompt, **more)
        return output.num_cached_tokens, list(output.outputs[0].token_ids)

    def forget(self) -> None:
        """Empty the engine's own prefix cache."""
        assert self.llm.reset_prefix_cache()

    @property
    def is_computing(self) -> bool:
        """Whether a batch is on its way between steps, as under asynchronous scheduling."""
        return any(output.total_num_scheduled_tokens for _, output, *_ in self.core.batch_queue or ())

    def settle(self) -> dict[str, int]:
        """Step until nothing is on its way, check the books, and give the statistics."""
        while self.leader.has_pending or self.is_computing:
            self.core.step_fn()
        self.leader.check()
        return self.leader.statistics()

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        _end_vllm()


def _end_vllm() -> None:
    """Leave no engine's global state behind."""
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    ensure_kv_transfer_shutdown()
    cleanup_dist_env_and_memory()
