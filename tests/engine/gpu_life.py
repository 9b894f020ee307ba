"""The random life of `life.py` on a GPU, with CUDA graphs, asynchronous scheduling, and 64 requests at once.

python -m tests.engine.gpu_life --requests 500 --seed 1 [--eager] [--onboard auto] [--save layers] [--out FILE]

First, prompts that meet the engine's own prefix cache, host memory and disk, with the same number of tokens matched:
all answer with the same tokens and log probabilities. Then the life. Wrong bytes are counted, not the end of it;
outputs are compared with a cold engine's, and counted, as batches of another shape round otherwise. Without CUDA all
of it runs on the CPU. Prints one JSON object; exit status 1 if a byte or a hit was wrong, or the life broke off.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tenuto.cli.bench.tinymodel import LlamaShape, make_llama
from tenuto.tiers.agent.client import AgentClient
from tests.engine.life import Life, Oracle
from tests.engine.life_births import Habits, births
from tests.engine.life_bytes import PageWitness
from tests.engine.life_world import World, chosen, make_engine, quiet_vllm, settings
from tests.engine.tiny import BLOCK_TOKENS, PAGE_TOKENS, SHAPE, Engine, prompt

B = BLOCK_TOKENS
MODEL = LlamaShape(n_layers=8, n_heads=4, n_kv_heads=2, head_dim=128, intermediate=1024, vocab=SHAPE.vocab)
EXTENT_BYTES = 4096 + MODEL.n_layers * MODEL.n_kv_heads * B * 2 * MODEL.head_dim * 2
N_PAGE_TOKENS = 12_288
N_HIT_TOKENS = 64
DISK_ROUTES = ("disk_to_host", "disk_to_device")
HABITS = Habits(
    lengths=(1, 15, 16, B - 1, B, B + 1, 2 * B, 3 * B - 1, 4 * B + 16, 7 * B - 1, 8 * B, 13 * B + 1, 20 * B, 2000),
    tails=(0, 0, 1, 17, B, 100, 300),
    outputs=(1, 2, 5, 12, 40, 70, 130, 200),
    gaps=(0, 0, 0, 0, 0, 1, 3),
    lull_chance=0.02,
)


def world(*, has_cuda: bool, is_eager: bool, n_kv_tokens: int = N_PAGE_TOKENS) -> World:
    """Host memory for 10,000 tokens and a disk for 38,000; 64 requests want pages for some 36,000."""
    page_tokens = 16 if has_cuda else PAGE_TOKENS
    options: dict[str, Any] = {
        "dtype": "bfloat16", "block_size": page_tokens, "enforce_eager": is_eager, "max_num_seqs": 64,
        "max_model_len": 4096, "max_num_batched_tokens": 1024, "kv_cache_memory_bytes": 512 << 20,
    }  # fmt: skip
    if has_cuda:
        options["gpu_memory_utilization"] = 0.5  # not used for the KV cache; what must be free at start
    return World(
        n_pages=n_kv_tokens // page_tokens,
        n_waiting=80,
        longest=3000,
        is_exact=False,
        running_reset_chance=0.004,
        connector_reset_chance=0.001,
        settings=settings(EXTENT_BYTES, n_host_slots=160, disk_bytes=600 * EXTENT_BYTES, load_timeout_s=1.0),
        options=options,
        cold_options=options,
    )


def compare_hits(engine: Engine, n_prompts: int) -> dict[str, Any]:
    """Prompts whose first blocks come from the engine's own pages, from host memory, from disk: equal answers?"""
    counts: Counter[str] = Counter()
    others: list[str] = []
    page_tokens = engine.worker.setup.page_tokens
    for number in range(n_prompts):
        n_blocks = 1 + number * 23 // max(1, n_prompts - 1)
        tokens = prompt(777_000 + number, n_blocks * B + 1 + number * 5 % page_tokens)
        cold = _ask(engine, tokens)
        own = _ask(engine, tokens)
        engine.forget()
        before = engine.settle()
        host = _ask(engine, tokens)
        engine.forget()
        engine.leader.manager.host.reset()
        between = engine.settle()
        disk = _ask(engine, tokens)
        after = engine.settle()
        engine.forget()
        from_host = _n_moved(between, "host_to_device") - _n_moved(before, "host_to_device")
        from_disk = _n_moved(after, *DISK_ROUTES) - _n_moved(between, *DISK_ROUTES)
        routes_right = (from_host, from_disk) == (n_blocks, n_blocks)
        matches_right = cold[0] == 0 and own[0] == host[0] == disk[0] == n_blocks * B
        counts["hits.as_meant"] += routes_right and matches_right
        for name, answer in (("host", host), ("disk", disk)):
            counts[f"hits.{name}_equal"] += answer == own
        counts["hits.cold_equal"] += cold[1] == own[1]  # a prompt computed in one piece: may round otherwise
        counts["hits.distinct_tokens"] = max(counts["hits.distinct_tokens"], len(set(own[1])))
        if not (routes_right and matches_right and host == own == disk):
            found = {"cached": [cold[0], own[0], host[0], disk[0]], "moved": [from_host, from_disk]}
            agree = {name: _n_agreeing(own[1], answer[1]) for name, answer in (("host", host), ("disk", disk))}
            others.append(f"{len(tokens)} tokens, {n_blocks} blocks: {found}, tokens that agree: {agree}")
    return {"hits": n_prompts, **counts, "hits.others": others}


def _ask(engine: Engine, tokens: list[int]) -> tuple[int, list[int], list[dict[int, float]]]:
    """(tokens that were not computed, output ids, log probabilities of the likeliest five of each)."""
    (output,) = engine.generate(tokens, n_tokens=N_HIT_TOKENS, logprobs=5)
    (answer,) = output.outputs
    likely = [{token: found.logprob for token, found in place.items()} for place in answer.logprobs]
    engine.settle()
    return output.num_cached_tokens, list(answer.token_ids), likely


def _n_moved(figures: dict[str, int], *routes: str) -> int:
    return sum(figures.get(f"moved.{route}", 0) for route in routes)


def _n_agreeing(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def missing(counts: dict[str, Any]) -> dict[str, int]:
    """What a life of this length should have had more of."""
    n = counts["requests"]
    found = counts | {"preempted": counts.get("preempted", 0) - counts.get("preempted.by_reset", 0)}
    at_least = {
        "finished": 0.7 * n, "with hits": 0.2 * n, "preempted": 0.1 * n, "pages.compared": n, "pages.read": n,
        "moved.host_to_device": 0.5 * n, "moved.disk_to_host": 0.2 * n, "moved.host_to_disk": n,
        "host.evictions": n, "disk.evictions": 1, "resets.engine": 1, "resets.running": 1, "resets.loading": 1,
        "aborted.waiting": 1, "aborted.loading": 1, "aborted.running": 1, "aborted.finished": 1,
        "failed.disk_to_host.io_error": 1, "failed.disk_to_host.corrupt": 1, "failed.host_to_disk.no_space": 1,
    }  # fmt: skip
    return {name: found.get(name, 0) for name, least in at_least.items() if n and found.get(name, 0) < least}


def live(arguments: argparse.Namespace, folder: Path, counts: dict[str, Any]) -> None:
    """Hits and a life; counts go into `counts` as they are known."""
    import vllm

    has_cuda = torch.cuda.is_available()
    there = world(has_cuda=has_cuda, is_eager=arguments.eager or not has_cuda, n_kv_tokens=arguments.kv_tokens)
    counts |= {
        "vllm": vllm.__version__, "torch": torch.__version__, "requests": arguments.requests, "seed": arguments.seed,
        "device": torch.cuda.get_device_name() if has_cuda else "cpu", "eager": there.options["enforce_eager"],
        "batch_invariant": arguments.batch_invariant, "pages": there.n_pages, "onboard": arguments.onboard,
        "save": arguments.save,
    }  # fmt: skip
    there.settings["runtime"] |= {"onboard": arguments.onboard, "save": arguments.save}
    model = make_llama(folder / "model", MODEL)
    requests = births(arguments.requests, arguments.seed, HABITS)
    began = time.monotonic()
    oracle = Oracle(model, requests, there) if requests else None
    counts["cold_s"] = round(time.monotonic() - began, 1)
    engine = make_engine(model, folder / "root", there)
    counts |= _facts(engine)
    witness = PageWitness(engine.worker, engine.kv_tensors, is_strict=False)
    gathers = engine.worker._gathers
    if gathers is not None:
        gathers.least_bytes = 1  # each layer by itself
    life: Life | None = None
    mover = Mover(engine, folder / "fast") if arguments.volumes else None
    try:
        counts |= compare_hits(engine, arguments.hits)
        began = time.monotonic()
        if oracle is not None:
            life = Life(engine, requests, oracle, arguments.seed, there)
            life.run()
        counts["life_s"] = round(time.monotonic() - began, 1)
    finally:
        counts |= dict(sorted(life.counts.items())) if life is not None else {}
        counts |= {"gathers": gathers.n_gathers if gathers is not None else 0}
        counts |= witness.counts() | {"wrong": witness.wrong} | chosen(engine.leader.statistics())
        counts |= mover.end() if mover is not None else {}
    counts["missing"] = missing(counts)
    engine.close()


class Mover(threading.Thread):
    """Moves blocks between the home volume and another, as an advisor does, until `end`."""

    def __init__(self, engine: Engine, fast: Path) -> None:
        super().__init__(daemon=True)
        self._store = engine.worker._store
        self._disk = engine.leader.manager.disk
        self._fast = fast
        self._over = threading.Event()
        self._counts: Counter[str] = Counter()
        self.start()

    def run(self) -> None:
        with AgentClient(self._store.claim.folder / "control") as agent:
            self._fast.mkdir()
            agent.register_volume("fast", str(self._fast), 200 * EXTENT_BYTES)
            while not self._over.wait(0.01):
                keys = self._disk.registered(0, len(self._disk))
                for volume in ("fast", ""):
                    outcome = agent.move([key.hash for key in random.sample(keys, min(16, len(keys)))], volume)
                    self._counts["volumes.moved"] += outcome.n_moved
                self._counts["volumes.compacted"] += agent.compact("fast").n_moved

    def end(self) -> dict[str, int]:
        self._over.set()
        self.join()
        return dict(self._counts)


def _facts(engine: Engine) -> dict[str, Any]:
    """What tells how the engine runs."""
    config, tensor = engine.llm.llm_engine.vllm_config, engine.kv_tensors[0]
    return {
        "async_scheduling": bool(engine.core.batch_queue is not None),
        "runner": type(engine.core.model_executor.driver_worker.worker.model_runner).__module__,
        "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
        "kv_tensor": f"{tuple(tensor.shape)} strides {tensor.stride()} {tensor.dtype} {tensor.device}",
        "extent_bytes": engine.worker.setup.layout.extent_bytes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=500, help="0: only the comparison of hits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hits", type=int, default=20, help="prompts of the comparison of hits")
    parser.add_argument(
        "--kv-tokens", type=int, default=N_PAGE_TOKENS, help="the engine's pages; fewer: more preemption"
    )
    parser.add_argument("--eager", action="store_true", help="no torch.compile and no CUDA graphs")
    parser.add_argument("--batch-invariant", action="store_true", help="vLLM's kernels that round alike in any batch")
    parser.add_argument("--onboard", default="async", help="how hits are loaded")
    parser.add_argument("--save", default="forward", help="when what is computed is stored")
    parser.add_argument("--volumes", action="store_true", help="blocks are moved between two volumes all the while")
    parser.add_argument("--timeout", type=float, default=550.0, help="seconds after which all stacks are printed")
    parser.add_argument("--out", type=Path, help="write the JSON here, too")
    arguments = parser.parse_args()
    quiet_vllm()
    os.environ["VLLM_BATCH_INVARIANT"] = str(int(arguments.batch_invariant))
    faulthandler.dump_traceback_later(arguments.timeout, exit=True)
    counts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            live(arguments, Path(folder), counts)
        except Exception:  # noqa: BLE001 - what was counted is told all the same
            counts["error"] = traceback.format_exc()
    text = json.dumps(counts)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    n_hits = counts.get("hits", 0)
    are_hits_equal = all(counts.get(f"hits.{name}", 0) == n_hits for name in ("as_meant", "host_equal", "disk_equal"))
    is_right = "error" not in counts and not counts["pages.wrong"] and are_hits_equal
    sys.stdout.flush()
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
