"""Tiny models under the names that vLLM's tests ask for: a folder in the working directory goes before the hub."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.engine.tiny import SHAPE, make_model

LLAMAS = (
    "facebook/opt-125m",
    "facebook/opt-350m",
    "hmellor/tiny-random-LlamaForCausalLM",
    "meta-llama/Llama-3.2-1B-Instruct",
    "Qwen/Qwen3-0.6B",
)
"""All of them are one small Llama: these tests ask for some model, not for this one."""

DEEPSEEK = "deepseek-ai/DeepSeek-V2-Lite"
"""Latent attention; the test that wants it makes its own weights."""


def make_models(tree: Path) -> None:
    """Write what is not there yet below `tree`."""
    source = tree / "models" / "tiny-llama"
    if not source.is_dir():
        make_model(source)
        _write_tokenizer(source)
    for name in LLAMAS:
        folder = tree / name
        folder.parent.mkdir(exist_ok=True)
        if not folder.is_dir():  # not there, or a link into a checkout that was moved
            folder.unlink(missing_ok=True)
            folder.symlink_to(os.path.relpath(source, folder.parent))
    folder = tree / DEEPSEEK
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_deepseek()))


def _write_tokenizer(folder: Path) -> None:
    """One token per word, so that a prompt has as many tokens here as where vLLM's authors counted them."""
    words = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(3, SHAPE.vocab))]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _deepseek() -> dict[str, object]:
    return {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": 512, "hidden_size": 128,
        "intermediate_size": 256, "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1,
        "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 0, "moe_layer_freq": 1,
        "norm_topk_prob": False, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_method": "greedy",
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
