"""In a process of its own: two data-parallel engines on one disk root. Prints one JSON object.

python -m tests.engine.data_parallel MODEL ROOT
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.engine.tiny import prompt, vllm_options

TOKENS = prompt(50, 300)
DEADLINE_S = 60.0


async def ask(engine, rank: int, number: int) -> tuple[int, list[int]]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    last = None
    async for output in engine.generate(
        {"prompt_token_ids": TOKENS}, params, request_id=f"{rank}-{number}", data_parallel_rank=rank
    ):
        last = output
    return last.num_cached_tokens, list(last.outputs[0].token_ids)


async def main(model: Path, root: Path) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    runtime = {"record_file": str(root.with_name("run.jsonl"))}
    options = vllm_options(root, {"tiers": {"disk": {"poll_s": 0.2}}, "runtime": runtime})
    options |= {"distributed_executor_backend": "mp", "data_parallel_size": 2, "enable_prefix_caching": False}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(model), **options))
    answers = {"first": await ask(engine, 0, 0), "same rank": await ask(engine, 0, 1)}
    for number in range(int(DEADLINE_S / 0.5)):  # until the other has seen the blocks listed
        answers["other rank"] = await ask(engine, 1, number)
        if answers["other rank"][0]:
            break
        await asyncio.sleep(0.5)
    engine.shutdown()
    print(json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
