"""What the connector costs the scheduler's thread, inside a real vLLM on the CPU."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Figures
from tenuto.cli.bench.tinymodel import LlamaShape, make_llama

_SHAPE = LlamaShape(n_layers=1, n_heads=1, n_kv_heads=1, head_dim=32, intermediate=32, max_positions=1 << 16)
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip
_METHODS = (
    "on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
    "update_connector_output", "request_finished", "has_pending_push_work", "take_events", "get_kv_connector_stats",
)  # fmt: skip
_MS = 1e3


@dataclass(frozen=True, slots=True)
class SchedulerSizes:
    """`n_running` requests with prompts of up to `n_prompt` tokens, for `n_steps`; one prompt of `n_long`."""

    n_running: int = 256
    n_prompt: int = 256
    n_steps: int = 320
    n_long: int = 32768
    n_rounds: int = 9


def measure_scheduler(sizes: SchedulerSizes, bar: Bar) -> Figures:
    """Wall time inside the connector's scheduler-side methods, summed per engine step. In-process engine.

    `step_ms_*`: steps in which `n_running` requests generate, each one token; their prompts have random lengths, so
    that in most steps some fill a block (64 tokens, two engine pages), which is kept in host memory and on disk.
    `vllm_step_ms_median` is all of `Scheduler.schedule` and `update_from_output` in these steps, ours included.
    `admit_32k_ms`: the step that takes in a new prompt of `n_long` tokens, all of it in host memory: hashing, matching,
    leasing, and the plan of its load. Median of `n_rounds`.
    """
    os.environ |= _ENVIRONMENT
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-") as folder:
        bench = _Bench(Path(folder), sizes)
        try:
            return bench.measure_steps(bar) | bench.measure_admission(bar)
        finally:
            bench.core.shutdown()


class _Bench:
    def __init__(self, folder: Path, sizes: SchedulerSizes) -> None:
        self._sizes = sizes
        self._random = random.Random(0)
        self._spent = {"ours": 0.0, "vllm": 0.0}
        self._n_asked = 0
        self.engine = _start(make_llama(folder / "model", _SHAPE), folder / "cache", sizes)
        self.core = self.engine.engine_core.engine_core
        self._scheduler = self.core.scheduler
        for name in _METHODS:
            self._time(self._scheduler.connector, name, "ours")
        for name in ("schedule", "update_from_output"):
            self._time(self._scheduler, name, "vllm")

    def measure_steps(self, bar: Bar) -> Figures:
        """Steps with all requests running."""
        sizes = self._sizes
        for _ in range(sizes.n_running):
            self._ask(self._prompt(self._random.randrange(2, sizes.n_prompt)), sizes.n_steps + 64)
        while len(self._scheduler.running) < sizes.n_running or self._scheduler.waiting:
            self.engine.step()
        spent = [self._step() for _ in bar.over(range(sizes.n_steps), "scheduler: steps", sizes.n_steps)]
        assert len(self._scheduler.running) == sizes.n_running
        self._finish()
        ours = [step["ours"] * _MS for step in spent]
        return {
            "step_ms_median": round(median(ours), 4),
            "step_ms_p99": round(quantiles(ours, n=100, method="inclusive")[98], 4),
            "step_ms_max": round(max(ours), 4),
            "vllm_step_ms_median": round(median(step["vllm"] for step in spent) * _MS, 4),
        }

    def measure_admission(self, bar: Bar) -> Figures:
        """A long prompt that is in host memory."""
        tokens = self._prompt(self._sizes.n_long)
        self._ask(tokens, 1)
        self._finish()
        spent: list[float] = []
        for _ in bar.over(range(self._sizes.n_rounds), "scheduler: admit", self._sizes.n_rounds):
            assert self._scheduler.reset_prefix_cache()
            before = self._n_loaded()
            self._ask(list(tokens), 1)
            spent.append(self._step()["ours"] * _MS)
            self._finish()
            assert self._n_loaded() == before + self._sizes.n_long
        return {"admit_32k_ms": round(median(spent), 3), "admit_32k_ms_max": round(max(spent), 3)}

    def _n_loaded(self) -> int:
        return self._scheduler.connector.statistics().get("tokens.loaded.host", 0)

    def _step(self) -> dict[str, float]:
        self._spent = {"ours": 0.0, "vllm": 0.0}
        self.engine.step()
        return self._spent

    def _finish(self) -> None:
        while self.engine.has_unfinished_requests():
            self.engine.step()
        while self._scheduler.connector.has_pending_push_work():
            self.core.step()

    def _prompt(self, n: int) -> list[int]:
        return [self._random.randrange(3, _SHAPE.vocab) for _ in range(n)]

    def _ask(self, tokens: list[int], n_tokens: int) -> None:
        from vllm import SamplingParams

        self._n_asked += 1
        params = SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True, detokenize=False)
        self.engine.add_request(str(self._n_asked), {"prompt_token_ids": tokens}, params)

    def _time(self, owner: Any, name: str, who: str) -> None:
        method: Callable[..., Any] | None = getattr(owner, name, None)
        if method is None:  # not in this version of vLLM
            return

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._spent[who] += time.perf_counter() - began

        setattr(owner, name, timed)


def _start(model: Path, cache: Path, sizes: SchedulerSizes) -> Any:
    from vllm import LLM

    max_len = max(sizes.n_long, 2048) + 64
    n_tokens = sizes.n_running * (sizes.n_prompt + sizes.n_steps + 128) + max_len
    page_bytes = 2 * _SHAPE.head_dim * 4
    llm = LLM(
        model=str(model), skip_tokenizer_init=True, enforce_eager=True, dtype="float32", block_size=32,
        kv_cache_memory_bytes=n_tokens * page_bytes, max_model_len=max_len,
        max_num_seqs=sizes.n_running, max_num_batched_tokens=8192, distributed_executor_backend="uni",
        disable_log_stats=True,
        kv_transfer_config={
            "kv_connector": "TenutoConnector", "kv_connector_module_path": "tenuto.connectors.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "layout": {"block_tokens": 64},
                "tiers": {"host": {"capacity": "512 MiB"}, "disk": {"path": str(cache), "capacity": "512 MiB"}},
            },
        },
    )  # fmt: skip
    return llm.llm_engine
