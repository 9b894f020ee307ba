"""A tiny Llama with random weights whose greedy output varies, and engines on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

N_LAYERS, N_KV_HEADS, HEAD_DIM, VOCAB = 4, 2, 32, 512
PAGE_TOKENS = 32


def make_model(folder: Path, *, seed: int = 0, dtype: str = "float32") -> Path:
    """Write config and weights of a 4-layer Llama; same seed, same weights."""
    hidden, inter, heads = 128, 256, 4
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": inter, "num_hidden_layers": N_LAYERS, "num_attention_heads": heads,
        "num_key_value_heads": N_KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": dtype,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    rng = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng) * 0.08

    weights = {
        "model.embed_tokens.weight": random(VOCAB, hidden),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": random(VOCAB, hidden),
    }
    for i in range(N_LAYERS):
        p = f"model.layers.{i}."
        weights |= {
            p + "input_layernorm.weight": torch.ones(hidden),
            p + "post_attention_layernorm.weight": torch.ones(hidden),
            p + "self_attn.q_proj.weight": random(heads * HEAD_DIM, hidden),
            p + "self_attn.k_proj.weight": random(N_KV_HEADS * HEAD_DIM, hidden),
            p + "self_attn.v_proj.weight": random(N_KV_HEADS * HEAD_DIM, hidden),
            p + "self_attn.o_proj.weight": random(hidden, heads * HEAD_DIM),
            p + "mlp.gate_proj.weight": random(inter, hidden),
            p + "mlp.up_proj.weight": random(inter, hidden),
            p + "mlp.down_proj.weight": random(hidden, inter),
        }
    dtype_ = getattr(torch, dtype)
    save_file(
        {k: v.to(dtype_).contiguous() for k, v in weights.items()}, folder / "model.safetensors"
    )
    return folder


def make_engine(model: Path, tenuto: dict[str, Any] | None, **options: Any) -> Any:
    """A real vLLM engine in this process; `tenuto` are the connector's settings, None for none."""
    from vllm import LLM

    settings: dict[str, Any] = {
        "skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32", "block_size": PAGE_TOKENS,
        "kv_cache_memory_bytes": 16 << 20, "max_model_len": 2048, "max_num_seqs": 8,
        "disable_log_stats": False,
    }  # fmt: skip
    if tenuto is not None:
        settings["kv_transfer_config"] = {
            "kv_connector": "TenutoConnector", "kv_connector_module_path": "tenuto.connectors.vllm",
            "kv_role": "kv_both", "kv_connector_extra_config": tenuto,
        }  # fmt: skip
    return LLM(model=str(model), **(settings | options))


def generate(llm: Any, prompt: list[int], n_tokens: int = 16, **sampling: Any) -> Any:
    """One greedy request: its `RequestOutput`."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0, max_tokens=n_tokens, ignore_eos=True, detokenize=False, **sampling
    )
    return llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0]


def connector(llm: Any) -> Any:
    """The scheduler-side connector of an in-process engine."""
    return llm.llm_engine.engine_core.engine_core.scheduler.connector
