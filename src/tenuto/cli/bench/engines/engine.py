"""vLLM in this process, stepped as its own engine process would step it."""

from __future__ import annotations

import gc
import subprocess
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tenuto.cli.bench.engines.messages import Asked, Ready, Start
from tenuto.cli.bench.engines.pump import Output
from tenuto.errors import TenutoError

RESET_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 100.0
_EMPTY_STEP_S = 0.001
_WARM_TOKENS = 64


class Engine:
    """One engine. Greedy, without end of sequence; requests are token ids."""

    def __init__(self, start: Start) -> None:
        from vllm import LLM

        self._vocab = start.vocab
        llm: Any = LLM(**start.options)
        self._engine: Any = llm.llm_engine
        self._reset: Any = llm.reset_prefix_cache
        self._core: Any = self._engine.engine_core.engine_core
        self._scheduler: Any = self._core.scheduler
        self._n_asked = 0
        self._is_executed = False
        self._watch_steps()
        self.ask(0, _WARM_TOKENS)
        self.forget()
        gc.collect()
        gc.freeze()  # as vLLM's engine process does

    def facts(self) -> Ready:
        """What runs, and on what."""
        import torch
        import vllm

        versions = {"vllm": str(vllm.__version__), "torch": str(torch.__version__)}
        if not torch.cuda.is_available():
            return Ready(versions, "")
        versions["cuda"] = str(torch.version.cuda)
        if driver := _driver():
            versions["driver"] = driver
        return Ready(versions, torch.cuda.get_device_name())

    def ask(self, seed: int, n_tokens: int, shared_seed: int = 0, n_shared: int = 0) -> Asked:
        """One prompt of random tokens, alone in the engine; one token of answer. Ends when nothing is on its way."""
        prompt = random_tokens(shared_seed, n_shared, self._vocab)
        prompt += random_tokens(seed, n_tokens, self._vocab)[n_shared:]
        before = self._counted("tokens.loaded.")
        self._n_asked += 1
        began = time.perf_counter()
        self.submit(f"ask-{self._n_asked}", prompt, 1)
        while not (ended := [output for output in self.step() if output.is_finished]):
            pass
        ttft_s = time.perf_counter() - began
        self.settle()  # what is loaded under the forward is counted when its last bytes have landed
        loaded = {tier: n - before.get(tier, 0) for tier, n in self._counted("tokens.loaded.").items()}
        loaded = {tier: n for tier, n in loaded.items() if n}
        return Asked(ttft_s, ended[0].reused_tokens, loaded, tuple(ended[0].tokens), self._counted("rate."))

    def submit(self, request: str, prompt: Sequence[int], n_answer: int) -> None:
        """Take in a request."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0, max_tokens=n_answer, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        self._engine.add_request(request, {"prompt_token_ids": prompt}, params)

    def step(self) -> Iterable[Output]:
        """One step. One without a forward waits a millisecond, as vLLM's engine process does between such steps."""
        outputs = [
            Output(out.request_id, tuple(out.outputs[0].token_ids), bool(out.finished), out.num_cached_tokens or 0)
            for out in self._engine.step()
        ]
        if not self._is_executed and self._scheduler.has_requests():
            time.sleep(_EMPTY_STEP_S)
        return outputs

    def settle(self) -> None:
        """Step until nothing is on its way, to host memory or to disk. Raises `TenutoError` when it goes on and on."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while self._scheduler.has_requests() or getattr(self._core, "batch_queue", None):
            self.step()
            if time.monotonic() > deadline:
                raise TenutoError("the connector's work does not end")

    def forget(self) -> None:
        """Empty the engine's own prefix cache. Raises `TenutoError` when it says no for a minute."""
        deadline = time.monotonic() + RESET_TIMEOUT_S
        self.settle()
        while not self._reset():
            if time.monotonic() > deadline:
                raise TenutoError("the engine would not empty its prefix cache")
            self.step()
            time.sleep(0.01)

    def close(self) -> None:
        """Shut the engine down."""
        self._engine.engine_core.shutdown()

    def _watch_steps(self) -> None:
        """Keep whether the last step ran the model: `LLMEngine.step` does not say."""
        step_fn = self._core.step_fn

        def watched() -> Any:
            outputs, self._is_executed = step_fn()
            return outputs, self._is_executed

        self._core.step_fn = watched

    def _counted(self, prefix: str) -> dict[str, int]:
        """What our connector's statistics say under this prefix; nothing where the connector is not ours."""
        statistics = getattr(self._scheduler.connector, "statistics", None)
        if statistics is None:
            return {}
        return {name.removeprefix(prefix): n for name, n in statistics().items() if name.startswith(prefix)}


def random_tokens(seed: int, n: int, vocab: int) -> list[int]:
    """The first `n` tokens of a seed: more of them begin with fewer."""
    return np.random.default_rng(seed).integers(3, vocab, n).tolist()


def _driver() -> str:
    """The GPU driver's version, or nothing where its tool is missing."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
