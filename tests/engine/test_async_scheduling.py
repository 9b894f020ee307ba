"""Under vLLM's asynchronous scheduler, which runs a step ahead of the tokens it knows. It is off on the CPU, so it is
driven alone here, with a made-up worker: what the model would sample is a function of request and position."""

from array import array
from collections import deque

import pytest
import torch

from tests.engine.tiny import BLOCK_TOKENS, PAGE_TOKENS, SHAPE, prompt

pytestmark = pytest.mark.engine

N_GENERATED = 2 * BLOCK_TOKENS + 5


def make_scheduler(model, n_pages):
    """An `AsyncScheduler` with our connector, which has host memory only."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    transfer = {
        "kv_connector": "TenutoConnector", "kv_connector_module_path": "tenuto.connectors.vllm", "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "layout": {"block_tokens": BLOCK_TOKENS}, "tiers": {"host": {"capacity": "16 MiB"}},
            "runtime": {"cost_gate": False},
        },
    }  # fmt: skip
    config = EngineArgs(
        model=str(model), skip_tokenizer_init=True, enforce_eager=True, dtype="float32", block_size=PAGE_TOKENS,
        max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=256, kv_transfer_config=transfer,
        kv_cache_memory_bytes=16 << 20,
    ).create_engine_config()  # fmt: skip
    config.scheduler_config.async_scheduling = True
    config.cache_config.num_gpu_blocks = n_pages
    spec = FullAttentionSpec(
        block_size=PAGE_TOKENS, num_kv_heads=SHAPE.n_kv_heads, head_size=SHAPE.head_dim, dtype=torch.float32
    )  # fmt: skip
    names = [f"model.layers.{i}.self_attn.attn" for i in range(SHAPE.n_layers)]
    pages = KVCacheConfig(num_blocks=n_pages, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(names, spec)])
    return AsyncScheduler(config, pages, StructuredOutputManager(config), PAGE_TOKENS)


def make_request(name, tokens):
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    params = SamplingParams(temperature=0, max_tokens=N_GENERATED, ignore_eos=True)
    params.update_from_generation_config({}, None)
    return Request(name, tokens, params, None, block_hasher=get_request_block_hasher(PAGE_TOKENS, sha256))


class MadeUpWorker:
    """Answers steps in order, one step late; does every transfer at once."""

    def __init__(self, requests):
        self.n_tokens = {name: request.num_tokens for name, request in requests.items()}
        self.waiting = deque()

    def run(self, output):
        """Take a step; what it samples is settled, though the scheduler hears of it later."""
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        from tenuto.connectors.session import WorkerReport
        from tenuto.connectors.vllm.connector import TenutoWorkerMetadata
        from tenuto.transfers.plan import TransferResult

        started = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        started |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        sampled = []
        for name, n_scheduled in output.num_scheduled_tokens.items():
            is_complete = started[name] + n_scheduled >= self.n_tokens[name]
            sampled.append([3 + (len(name) * 31 + self.n_tokens[name] * 7) % 500] if is_complete else [])
            self.n_tokens[name] += is_complete
        plan = output.kv_connector_metadata.plan
        transfers = (*plan.now, *plan.after_forward)
        report = WorkerReport({t.id: [TransferResult(t.id)] for t in transfers})
        names = list(output.num_scheduled_tokens)
        told = KVConnectorOutput(
            finished_recving={name for name, _ in plan.loads}, kv_connector_worker_meta=TenutoWorkerMetadata(report)
        )
        where = {name: index for index, name in enumerate(names)}
        self.waiting.append((output, ModelRunnerOutput(names, where, sampled, kv_connector_output=told)))


@pytest.mark.parametrize("n_pages", [64, 20], ids=["room for all", "preemption"])
def test_no_block_is_kept_before_all_its_tokens_are_known(model, n_pages):
    scheduler = make_scheduler(model, n_pages)
    requests = {"r" * n: make_request("r" * n, prompt(60 + n, 100 + n)) for n in (1, 2, 3)}
    for request in requests.values():
        scheduler.add_request(request)
    worker, leader = MadeUpWorker(requests), scheduler.connector.leader
    kept, n_ahead, n_preempted = {}, 0, 0
    while scheduler.has_unfinished_requests():
        known = {name: request.num_tokens for name, request in requests.items()}
        output = scheduler.schedule()
        n_preempted += len(output.preempted_req_ids or ())
        n_ahead += sum(requests[name].num_computed_tokens > known[name] for name in output.num_scheduled_tokens)
        for transfer in output.kv_connector_metadata.plan.after_forward:
            for block in transfer.blocks:
                kept[block.key.hash] = block
                tokens = list(array("I", block.token_bytes))
                place = slice(block.index * BLOCK_TOKENS, (block.index + 1) * BLOCK_TOKENS)
                assert any(list(r.all_token_ids)[: known[name]][place] == tokens for name, r in requests.items())
        worker.run(output)
        if len(worker.waiting) == 2 or not output.num_scheduled_tokens:
            scheduler.update_from_output(*worker.waiting.popleft())
            leader.check()
    while worker.waiting:
        scheduler.update_from_output(*worker.waiting.popleft())
    assert n_ahead > N_GENERATED  # it did run ahead
    assert bool(n_preempted) == (n_pages == 20)
    n_full = sum((request.num_tokens - 1) // BLOCK_TOKENS for request in requests.values())
    assert n_full - len(requests) <= len(kept) <= n_full
    assert leader.statistics()["requests"] == leader.statistics()["host.leased"] == 0
