"""transformers with the example's prefix cache computes what it computes without."""

import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.adapter
transformers = pytest.importorskip("transformers")

PATH = Path(__file__).resolve().parents[2] / "examples" / "transformers_cache.py"
PROMPT = torch.arange(400).mul(7919).remainder(500).tolist()


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("transformers_cache", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def model(request):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(request.param)


def opened(example, model, folder, **options):
    return example.CachedModel(model, "tiny", folder, host_memory="2 MiB", disk="64 MiB", **options)


@torch.no_grad()
def test_logits_are_equal_and_loaded_keys_and_values_are_so_bit_for_bit(example, model, tmp_path):
    expected = model(torch.tensor([PROMPT]), use_cache=True)
    tolerance = {} if model.dtype is torch.float32 else {"rtol": 0.1, "atol": 0.05}
    for n_wanted in (0, 384):
        cached = opened(example, model, tmp_path)
        logits, past, n_loaded = cached.prefill(PROMPT)
        assert n_loaded == n_wanted
        torch.testing.assert_close(logits, expected.logits[:, n_loaded:], **tolerance)
        for layer, plain in zip(past.layers, expected.past_key_values.layers, strict=True):
            assert torch.equal(layer.keys[:, :, :384], plain.keys[:, :, :384])
            assert torch.equal(layer.values[:, :, :384], plain.values[:, :, :384])
        cached.blocks.check()
        cached.blocks.close()


@torch.no_grad()
def test_other_ends_of_a_prompt_share_its_blocks_and_longer_prompts_than_the_memory_are_right_too(
    example, model, tmp_path
):
    cached = opened(example, model, tmp_path, n_blocks=6)
    assert cached.prefill(PROMPT)[2] == 0
    assert cached.prefill(PROMPT)[2] == 6 * example.BLOCK_TOKENS
    other = [*PROMPT[:100], *PROMPT[:50]]
    logits, _, n_loaded = cached.prefill(other)
    assert n_loaded == 96
    expected = model(torch.tensor([other])).logits[:, 96:]
    torch.testing.assert_close(logits, expected, rtol=0.1, atol=0.05)
    assert cached.generate(PROMPT[:70], 4) == cached.generate(PROMPT[:70], 4)
    cached.blocks.close()
