"""Models that keep one latent a token (MLA): a tiny DeepSeek-V2 whose prompts come back from host memory and disk."""

import json

import pytest
import torch

from tests.engine.tiny import Engine, prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

N_LAYERS, N_HEADS, HIDDEN, LATENT, NOPE, ROPE, V = 3, 4, 128, 512, 32, 64, 32


def make_deepseek(folder):
    from safetensors.torch import save_file

    rng = torch.Generator().manual_seed(0)

    def some(*size):
        return torch.randn(*size, generator=rng) * 0.08

    weights = {
        "model.embed_tokens.weight": some(512, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": some(512, HIDDEN),
    }
    for i in range(N_LAYERS):
        p = f"model.layers.{i}."
        weights |= {
            p + "input_layernorm.weight": torch.ones(HIDDEN),
            p + "post_attention_layernorm.weight": torch.ones(HIDDEN),
            p + "self_attn.q_proj.weight": some(N_HEADS * (NOPE + ROPE), HIDDEN),
            p + "self_attn.kv_a_proj_with_mqa.weight": some(LATENT + ROPE, HIDDEN),
            p + "self_attn.kv_a_layernorm.weight": torch.ones(LATENT),
            p + "self_attn.kv_b_proj.weight": some(N_HEADS * (NOPE + V), LATENT),
            p + "self_attn.o_proj.weight": some(HIDDEN, N_HEADS * V),
            p + "mlp.gate_proj.weight": some(256, HIDDEN),
            p + "mlp.up_proj.weight": some(256, HIDDEN),
            p + "mlp.down_proj.weight": some(HIDDEN, 256),
        }
    config = {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": HIDDEN,
        "intermediate_size": 256, "moe_intermediate_size": 64, "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS, "num_key_value_heads": N_HEADS, "q_lora_rank": None, "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": V, "n_routed_experts": 4,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": N_LAYERS, "moe_layer_freq": 1, "vocab_size": 512,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: weight.bfloat16() for name, weight in weights.items()}, folder / "model.safetensors")
    return folder


def test_latents_come_back_from_host_memory_and_from_disk(tmp_path):
    model = make_deepseek(tmp_path / "model")
    prompts = [prompt(seed, 200) for seed in (1, 2)]
    # Pages of 32 tokens, which vLLM makes 16 where the CPU has no AMX. A cold prompt is computed in the chunks 192 and
    # 8, a hit has 192 tokens: the same sums in the same order, so outputs are equal in bfloat16, too.
    options = {
        "dtype": "bfloat16", "block_size": 32, "max_num_batched_tokens": 192, "enable_chunked_prefill": True,
    }  # fmt: skip
    engine = Engine(model, tmp_path / "root", **options)
    try:
        layout = engine.worker.setup.layout
        assert (layout.n_heads, layout.k_dim, layout.v_dim) == (1, LATENT + ROPE, 0)
        cold = [engine.ask(tokens) for tokens in prompts]
        engine.settle()
        engine.forget()
        host = [engine.ask(tokens) for tokens in prompts]
        statistics = engine.settle()
    finally:
        engine.close()
    assert [n for n, _ in cold] == [0, 0]
    assert [n for n, _ in host] == [192, 192], statistics
    assert cold[0][1] != cold[1][1]
    assert len(set(cold[0][1])) > 3, "outputs that do not vary tell nothing"
    assert [out for _, out in host] == [out for _, out in cold]
    engine = Engine(model, tmp_path / "root", **options)
    try:
        assert [engine.ask(tokens) for tokens in prompts] == host
        engine.settle()
    finally:
        engine.close()
