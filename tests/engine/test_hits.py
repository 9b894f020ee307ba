"""Real vLLM gets its prompts back, from host memory and from disk, bit for bit."""

import pytest
import torch

from tests.engine.tiny import BLOCK_TOKENS, PAGE_TOKENS, prompt

pytestmark = pytest.mark.engine


class KVSpy:
    """Engine pages of what was staged and of what was loaded, by block hash, as bytes."""

    def __init__(self, engine):
        self._engine = engine
        self.staged, self.loaded = {}, {}
        manager = engine.leader.manager
        complete = manager.complete

        def spy(result):
            transfer = manager.flights._flights[result.transfer_id].transfer
            if transfer.pages:
                seen = self.staged if transfer.route.value == "device_to_host" else self.loaded
                for key, run in zip(transfer.keys, transfer.pages, strict=True):
                    seen[key.hash] = [None] * run.first + [self._page(page) for page in run.pages[run.first :]]
            return complete(result)

        manager.complete = spy

    def _page(self, page):
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        assert get_kv_transfer_group()
        stacks = self._engine.worker._movers._device._paged._stacks
        return b"".join(stack[page].contiguous().view(torch.uint8).numpy().tobytes() for stack in stacks)

    def assert_loaded_what_was_staged(self, n_blocks):
        assert len(self.loaded) == n_blocks
        for block, pages in self.loaded.items():
            for page, original in zip(pages, self.staged[block], strict=True):
                assert page is None or page == original


def oracle(engine, tokens):
    """Output of the engine's own prefix hit."""
    engine.ask(tokens)
    return engine.ask(tokens)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 96, "enable_chunked_prefill": True},
        {"enable_prefix_caching": False},
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
    ],
    ids=["whole prompts", "chunked prefill", "no prefix caching", "bfloat16", "float16"],
)
def test_a_forgotten_prompt_comes_back_from_host_memory(start, options):
    engine = start(**options)
    spy = KVSpy(engine)
    tokens = prompt(1, 700)
    cold = engine.ask(tokens)
    assert cold[0] == 0
    expected = oracle(engine, tokens)[1] if options.get("enable_prefix_caching", True) else cold[1]
    engine.forget()
    spy.loaded.clear()
    assert engine.ask(tokens) == (640, expected)
    spy.assert_loaded_what_was_staged(10)
    figures = engine.settle()
    assert figures["moved.host_to_device"] >= 10
    assert not any(name.startswith("failed") for name in figures)


def test_a_restarted_engine_finds_its_prompts_on_disk(start):
    tokens = prompt(2, 500)
    engine = start()
    spy = KVSpy(engine)
    expected = oracle(engine, tokens)[1]
    staged = spy.staged
    engine.settle()
    engine = start()
    spy = KVSpy(engine)
    assert engine.ask(tokens) == (448, expected)
    spy.staged = staged
    spy.assert_loaded_what_was_staged(7)
    assert engine.settle()["moved.disk_to_host"] == 7
    engine.forget()
    assert engine.ask(tokens) == (448, expected)  # from host memory, where the disk hit left it
    assert engine.settle()["moved.disk_to_host"] == 7


def test_a_prompt_of_whole_blocks_is_loaded_whole(start):
    engine = start()
    tokens = prompt(3, 4 * BLOCK_TOKENS)
    expected = engine.ask(tokens)[1]
    engine.forget()
    n_cached, output = engine.ask(tokens)
    assert n_cached == 4 * BLOCK_TOKENS
    assert output == expected


@pytest.mark.parametrize("n_tokens", [1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1])
def test_short_prompts_are_right_too(start, n_tokens):
    engine = start()
    tokens = prompt(4, n_tokens)
    expected = engine.ask(tokens, n_tokens=4)[1]
    engine.forget()
    n_cached, output = engine.ask(tokens, n_tokens=4)
    assert n_cached == n_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    assert output == expected
    engine.settle()


def test_what_the_engine_still_has_is_not_loaded_again_even_inside_a_block(start):
    engine = start()
    spy = KVSpy(engine)
    tokens = prompt(5, 400)
    expected = oracle(engine, tokens)[1]
    engine.forget()
    engine.ask([*tokens[: PAGE_TOKENS + 1], 7, 8, 9])  # leaves one page, half of our first block, in the engine
    spy.loaded.clear()
    assert engine.ask(tokens) == (384, expected)
    spy.assert_loaded_what_was_staged(6)
    assert next(iter(spy.loaded.values()))[0] is None  # the page the engine had was left alone


def test_generated_tokens_are_kept_too(start):
    engine = start()
    tokens = prompt(6, 100)
    _, output = engine.ask(tokens, n_tokens=100)
    engine.forget()
    n_cached, _ = engine.ask([*tokens, *output[:99], 5, 6])
    assert n_cached == 192
    engine = start({"runtime": {"cache_generated": False}})
    other = prompt(7, 100)
    _, output = engine.ask(other, n_tokens=100)
    engine.forget()
    assert engine.ask([*other, *output[:99], 5, 6])[0] == 64


def test_batches_with_shared_prefixes_are_right(start):
    engine = start()
    base = prompt(8, 330)
    prompts = [[*base, *prompt(100 + i, 10 + 37 * i)] for i in range(6)]
    expected = [list(o.outputs[0].token_ids) for o in engine.generate(*prompts)]
    for _ in range(2):
        engine.forget()
        outputs = engine.generate(*prompts)
        assert [list(o.outputs[0].token_ids) for o in outputs] == expected
        assert all(o.num_cached_tokens >= 320 for o in outputs)
        engine.settle()


def test_preempted_requests_end_right(start):
    prompts = [prompt(200 + i, 150) for i in range(8)]
    engine = start(kv_cache_memory_bytes=16 << 20)
    expected = [list(engine.generate(p, n_tokens=150)[0].outputs[0].token_ids) for p in prompts]
    n_pages = 48
    engine = start(num_gpu_blocks_override=n_pages, max_model_len=512)
    preempted = []
    preempt = engine.scheduler._preempt_request
    engine.scheduler._preempt_request = lambda *a, **k: preempted.append(a) or preempt(*a, **k)
    outputs = engine.generate(*prompts, n_tokens=150)
    assert preempted
    assert [list(o.outputs[0].token_ids) for o in outputs] == expected
    engine.settle()


def test_a_reset_of_the_engines_cache_under_a_running_request_leaves_right_blocks(start):
    from vllm import SamplingParams

    engine = start()
    tokens = prompt(12, 2 * BLOCK_TOKENS)
    params = SamplingParams(temperature=0, max_tokens=BLOCK_TOKENS + 16, ignore_eos=True, detokenize=False)
    llm = engine.llm.llm_engine
    llm.add_request("a", {"prompt_token_ids": tokens}, params)
    while not engine.leader.filling._held:  # a generated block, on pages that the reset takes away
        llm.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    outputs = []
    while llm.has_unfinished_requests():
        outputs += llm.step()
    engine.settle()
    followed = [*tokens, *outputs[-1].outputs[0].token_ids[: BLOCK_TOKENS + 5]]
    engine.forget()
    computed = engine.ask(followed, cache_salt="other", n_tokens=24)
    engine.forget()
    assert engine.ask(followed, n_tokens=24) == (3 * BLOCK_TOKENS, computed[1])


def test_a_salt_keeps_prompts_apart(start):
    engine = start()
    tokens = prompt(9, 200)
    engine.ask(tokens, cache_salt="alice")
    engine.forget()
    assert engine.ask(tokens, cache_salt="bob")[0] == 0
    engine.forget()
    assert engine.ask(tokens)[0] == 0
    engine.forget()
    assert engine.ask(tokens, cache_salt="alice")[0] == 192


def test_prompt_logprobs_are_never_served_from_a_cache(start):
    engine = start()
    tokens = prompt(10, 200)
    engine.ask(tokens)
    engine.forget()
    assert engine.ask(tokens, prompt_logprobs=1, skip_reading_prefix_cache=True)[0] == 0


def test_a_reset_forgets_everywhere_and_for_good(start):
    engine = start()
    tokens = prompt(11, 300)
    expected = engine.ask(tokens)[1]
    engine.settle()
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    assert engine.ask(tokens) == (0, expected)
    engine.forget()
    assert engine.ask(tokens) == (256, expected)  # what was computed after the reset is kept
    engine.settle()
    assert start().ask(tokens)[0] == 0  # but not over a restart: other weights may have been in memory


def test_a_request_that_is_aborted_while_it_loads_leaves_nothing_behind(start):
    from vllm import SamplingParams

    engine = start()
    tokens = prompt(12, 500)
    expected = engine.ask(tokens)[1]
    engine.forget()
    core = engine.llm.llm_engine
    for n_steps in range(4):
        request_id = core.add_request(f"victim-{n_steps}", {"prompt_token_ids": tokens}, SamplingParams(max_tokens=8))
        for _ in range(n_steps):
            core.step()
        core.abort_request([request_id], internal=True)
        while core.has_unfinished_requests():
            core.step()
        engine.settle()
        engine.forget()
    assert engine.ask(tokens) == (448, expected)
    assert engine.settle()["requests"] == 0
