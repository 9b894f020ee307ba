"""Tiny models with random weights whose greedy output varies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a Llama."""

    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 256
    vocab: int = 512
    max_positions: int = 4096

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.n_heads * self.head_dim

    def config(self) -> dict[str, Any]:
        """As in a config.json of Hugging Face."""
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": self.hidden,
            "intermediate_size": self.intermediate, "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads, "num_key_value_heads": self.n_kv_heads, "head_dim": self.head_dim,
            "vocab_size": self.vocab, "max_position_embeddings": self.max_positions, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32",
            "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip


def make_llama(folder: Path, shape: LlamaShape | None = None, *, seed: int = 0) -> Path:
    """Write config and float32 weights of a Llama into `folder`; same seed, same weights. Needs torch, safetensors."""
    import torch
    from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

    shape = shape or LlamaShape()
    rng = torch.Generator().manual_seed(seed)

    def some(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=rng) * 0.08  # large enough for outputs that depend on their context

    hidden, kv = shape.hidden, shape.n_kv_heads * shape.head_dim
    weights = {
        "model.embed_tokens.weight": some(shape.vocab, hidden),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": some(shape.vocab, hidden),
    }
    for i in range(shape.n_layers):
        p = f"model.layers.{i}."
        weights |= {
            p + "input_layernorm.weight": torch.ones(hidden),
            p + "post_attention_layernorm.weight": torch.ones(hidden),
            p + "self_attn.q_proj.weight": some(hidden, hidden),
            p + "self_attn.k_proj.weight": some(kv, hidden),
            p + "self_attn.v_proj.weight": some(kv, hidden),
            p + "self_attn.o_proj.weight": some(hidden, hidden),
            p + "mlp.gate_proj.weight": some(shape.intermediate, hidden),
            p + "mlp.up_proj.weight": some(shape.intermediate, hidden),
            p + "mlp.down_proj.weight": some(hidden, shape.intermediate),
        }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config()))
    save_file(weights, folder / "model.safetensors")
    return folder
