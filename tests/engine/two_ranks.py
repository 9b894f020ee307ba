"""In a process of its own: an engine of two tensor-parallel ranks. Prints one JSON object.

python -m tests.engine.two_ranks MODEL ROOT first|again
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.engine.tiny import Engine, prompt

PROMPTS = [prompt(40 + i, 300) for i in range(4)]  # 4 whole blocks each
HANGS_S = 6.0
SETTINGS = {"runtime": {"load_timeout_s": 1.0, "retry_s": 0.1}}


def break_rank_1(vllm_worker: Any, how: str) -> None:
    """Runs in each worker: the second rank's disk gives errors, or does not answer, or works again."""
    import time

    from vllm.distributed.kv_transfer import get_kv_transfer_group

    from tenuto.errors import Cause
    from tenuto.tiers.store import Failure

    worker = get_kv_transfer_group().worker
    if worker.rank != 1:
        return
    store = worker._store
    read = type(store).read

    def broken(items: Any, volume: str = "") -> Any:
        if how == "errors":
            return [Failure(index, Cause.IO_ERROR) for index in range(len(items))]
        time.sleep(HANGS_S)
        return read(store, items, volume)

    store.read = (lambda *args: read(store, *args)) if how == "works" else broken


def lookups(engine: Engine, prompts: list[list[int]]) -> list[tuple[int, list[int]]]:
    """(tokens not computed, output) of each prompt, which the engine itself has forgotten."""
    engine.forget()
    return [engine.ask(tokens) for tokens in prompts]


def first(engine: Engine) -> dict[str, Any]:
    cold = [engine.ask(tokens) for tokens in PROMPTS]
    engine.settle()
    return {"cold": cold, "host": lookups(engine, PROMPTS[:1])}


def again(engine: Engine) -> dict[str, Any]:
    answers: dict[str, Any] = {"disk": lookups(engine, PROMPTS[:1])}
    for how, tokens in (("errors", PROMPTS[1]), ("hangs", PROMPTS[2])):
        engine.llm.collective_rpc(break_rank_1, args=(how,))
        answers[how] = lookups(engine, [tokens])
        engine.settle()
        engine.llm.collective_rpc(_wait)
    engine.llm.collective_rpc(break_rank_1, args=("works",))
    answers["works again"] = lookups(engine, PROMPTS[3:])
    return answers


def _wait(vllm_worker: Any) -> None:
    """Longer than `retry_s`."""
    import time

    time.sleep(0.2)


if __name__ == "__main__":
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    engine = Engine(
        Path(sys.argv[1]), Path(sys.argv[2]), SETTINGS, tensor_parallel_size=2, distributed_executor_backend="mp"
    )
    answers = {"first": first, "again": again}[sys.argv[3]](engine)
    answers["figures"] = engine.settle()
    engine.llm.llm_engine.engine_core.shutdown()
    print(json.dumps(answers))
