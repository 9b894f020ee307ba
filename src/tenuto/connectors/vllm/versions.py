"""Where versions of vLLM differ: told by what an object has, never by a version number.

Served: 0.27.1 to 0.32.0; 0.26 has the interface of 0.27.1. Only what may be missed without harm has a default here: a
newer vLLM without an attribute that keeps prompts apart must end in an error. These calls differ, and need no code:

* `start_load_kv` comes before the forward (0.27), or behind it (0.32): what it starts touches no page of this step.
* `wait_for_save` does not come in steps without a forward (0.27): such steps have nothing to copy.
* `get_transfer_results` (0.32) has a default that asks `get_finished` and `get_block_ids_with_load_errors`.
* Layers have a storage each (0.27), or share one (0.32): they are taken by name, shape and stride.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import MLAAttentionSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import AttentionSpec
    from vllm.v1.request import Request


FP8_DS_MLA_BYTES = 656
"""A token in vLLM's format of that name: 512 values of a byte, 16 of their scales, 128 of 64 rotated bfloat16."""


def row_sizes(spec: AttentionSpec) -> tuple[int, int]:
    """Elements of a K and of a V row; V has none in MLA. A spec that names no V size has one size for both."""
    if isinstance(spec, MLAAttentionSpec):
        return (FP8_DS_MLA_BYTES if spec.cache_dtype_str == "fp8_ds_mla" else spec.head_size), 0
    k_dim = spec.head_size
    return k_dim, getattr(spec, "head_size_v", None) or k_dim


def is_plain_latent(spec: MLAAttentionSpec) -> bool:
    """Whether each token has one row of its own, of a known size: not so in DeepSeek V4 and in indexers' caches."""
    tokens_per_row = getattr(spec, "compress_ratio", getattr(spec, "tokens_per_state", 1))
    role = getattr(getattr(spec, "cache_role", None), "name", "SPARSE")
    return (
        type(spec) is MLAAttentionSpec
        and spec.num_kv_heads == tokens_per_row == 1
        and spec.model_version is None
        and role == "SPARSE"
        and "INT4" not in spec.kv_quant_mode.name
    )


def measures_scales(vllm_config: VllmConfig) -> bool:
    """Whether each start measures its own KV scales (an option of 0.27, gone from 0.32)."""
    return bool(getattr(vllm_config.cache_config, "calculate_kv_scales", False))


def prefill_context_parallel_size(vllm_config: VllmConfig) -> int:
    """Ranks that share a prompt; 1 where vLLM has no such thing."""
    return getattr(vllm_config.parallel_config, "prefill_context_parallel_size", 1)


def may_change(request: Request) -> bool:
    """Whether tokens of the request may be taken back: those of a streamed session."""
    return bool(getattr(request, "resumable", False))


def set_to_recompute(vllm_config: VllmConfig) -> bool:
    """Have blocks that fail to load computed instead of the request failed; whether that had to be changed."""
    transfer = vllm_config.kv_transfer_config
    if getattr(transfer, "kv_load_failure_policy", "recompute") == "recompute":
        return False
    assert transfer is not None
    transfer.kv_load_failure_policy = "recompute"
    return True


def calls_layer_hooks(forward_context: Any) -> bool:
    """Whether the layers of this forward ask for their loads: not in full CUDA graphs, nor without attention."""
    mode = getattr(getattr(forward_context, "cudagraph_runtime_mode", None), "name", "NONE")
    return forward_context.attn_metadata is not None and mode != "FULL"
