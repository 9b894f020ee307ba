"""The engine of the demo: vLLM in this process, with tenuto as its connector."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from vllm import LLM, SamplingParams
from vllm import __version__ as vllm_version

from tenuto.cli.demo.model import DTYPE
from tenuto.errors import TenutoError

ENGINE_NAME = f"vLLM {vllm_version}"
KV_CACHE_BYTES = 1 << 30
RESET_TIMEOUT_S = 30.0


def kv_transfer_config(kv_folder: str) -> dict[str, Any]:
    """What a user writes to give vLLM its prompts back: the whole of the integration."""
    return {
        "kv_connector": "TenutoConnector",
        "kv_connector_module_path": "tenuto.connectors.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "tiers": {
                "host": {"capacity": "1 GiB"},
                "disk": {"path": kv_folder, "capacity": "2 GiB"},
            }
        },
    }


@dataclass(frozen=True)
class Answer:
    """One request's outcome; see `messages.Run` for the fields."""

    prompt_tokens: int
    reused_tokens: int
    loaded_bytes: int
    ttft_s: float
    output_ids: tuple[int, ...]
    text: str


class Engine:
    """vLLM, greedy, one request at a time, all in this process."""

    def __init__(self, model: str, kv_folder: str) -> None:
        self._llm = LLM(
            model,
            dtype=DTYPE,
            kv_cache_memory_bytes=KV_CACHE_BYTES,
            distributed_executor_backend="uni",
            enforce_eager=True,
            disable_log_stats=False,  # the engine times each request
            kv_transfer_config=kv_transfer_config(kv_folder),
        )
        self._tokenizer: Any = self._llm.get_tokenizer()

    def tokens(self, messages: list[dict[str, str]]) -> list[int]:
        """Prompt token ids of a chat, ready for the answer to begin."""
        prompt = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer.encode(prompt, add_special_tokens=False))

    def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        """Answer one prompt, greedily, with the engine's own measure of its first token."""
        before = self._loaded_bytes()
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        [result] = self._llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
        output = result.outputs[0]
        if result.metrics is None:
            raise TenutoError("the engine gave no timings for its request")
        return Answer(
            prompt_tokens=len(prompt),
            reused_tokens=result.num_cached_tokens or 0,
            loaded_bytes=self._loaded_bytes() - before,
            ttft_s=result.metrics.first_token_latency,
            output_ids=tuple(output.token_ids),
            text=output.text,
        )

    def forget(self) -> None:
        """Empty the engine's own prefix cache, as soon as nothing holds its blocks any more."""
        deadline = time.monotonic() + RESET_TIMEOUT_S
        while not self._llm.reset_prefix_cache():
            if time.monotonic() > deadline:
                raise TenutoError("the engine would not empty its prefix cache")
            self._llm.llm_engine.step()
            time.sleep(0.02)

    def _loaded_bytes(self) -> int:
        """Bytes that the connector has loaded into the engine since its start."""
        core: Any = self._llm.llm_engine.engine_core
        figures: dict[str, int] = core.engine_core.scheduler.connector.statistics()
        return figures.get("bytes.host_to_device", 0) + figures.get("bytes.disk_to_device", 0)

    def close(self) -> None:
        """Shut the engine down; what is on its way to disk gets there first."""
        self._llm.llm_engine.engine_core.shutdown()
