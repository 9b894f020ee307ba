"""What can't be served exactly is refused at start, in one line that names the setting or the model and the way out."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tenuto.errors import ConfigError, UnsupportedModelError

pytestmark = pytest.mark.engine


def full(**changes):
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(
        **({"block_size": 32, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32} | changes)
    )


def groups(*specs):
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=["l.0"]) for spec in specs])


def refusal(call, *arguments):
    with pytest.raises(UnsupportedModelError) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_several_groups_name_the_flag_that_helps():
    from tenuto.connectors.vllm.translate import _only_spec

    line = refusal(_only_spec, groups(full(), full()))
    assert "2 KV cache groups" in line
    assert "--disable-hybrid-kv-cache-manager" in line


def test_a_model_without_a_cache_is_not_sent_to_a_flag_that_does_not_help():
    from tenuto.connectors.vllm.translate import _only_spec

    line = refusal(_only_spec, groups())
    assert "no KV cache" in line
    assert "--" not in line


def test_a_model_folder_without_weights_is_refused_in_one_line(tmp_path):
    from tenuto.connectors.vllm.translate import _weights

    config = SimpleNamespace(
        model_config=SimpleNamespace(model=str(tmp_path), seed=0), load_config=SimpleNamespace(load_format="auto")
    )
    with pytest.raises(ConfigError, match=r"^model: no weight files in .*; start vLLM without tenuto$"):
        _weights(config, "auto")


def test_latent_windowed_and_uneven_attention_are_not_served_yet():
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowSpec

    from tenuto.connectors.vllm.translate import _only_spec

    mla = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    window = SlidingWindowSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float32, sliding_window=128)
    compressed = replace(mla, model_version="deepseek_v4")
    for spec in (compressed, window, full(head_size_v=64)):
        assert type(spec).__name__ in refusal(_only_spec, groups(spec))
    assert _only_spec(groups(mla)) == mla
    assert refusal(_only_spec, groups(mla), 2).startswith("tensor_parallel_size: 2 is not supported")
    assert _only_spec(groups(full())).head_size == 32


@pytest.mark.parametrize(
    "setting",
    ["pipeline_parallel_size", "prefill_context_parallel_size", "decode_context_parallel_size"],
)
def test_parallelism_that_is_not_served_names_its_setting(setting):
    from tenuto.connectors.vllm.translate import _refuse_unsupported

    sizes = dict.fromkeys(
        ["pipeline_parallel_size", "prefill_context_parallel_size", "decode_context_parallel_size"], 1
    )
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(**(sizes | {setting: 2})),
        cache_config=SimpleNamespace(calculate_kv_scales=False),
    )
    assert refusal(_refuse_unsupported, config).startswith(f"{setting}: 2 is not supported")


def test_scales_that_are_measured_at_each_start_are_refused():
    from tenuto.connectors.vllm.translate import _refuse_unsupported

    parallel = SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1)
    config = SimpleNamespace(parallel_config=parallel, cache_config=SimpleNamespace(calculate_kv_scales=True))
    assert refusal(_refuse_unsupported, config).startswith("calculate_kv_scales: ")


def test_longrope_models_are_told_apart_by_their_longest_prompt():
    from tenuto.connectors.session.fingerprint import fingerprint_config
    from tenuto.connectors.vllm.translate import _configuration

    def identity(rope, max_model_len):
        hf = SimpleNamespace(to_dict=lambda: {"rope_scaling": {"rope_type": rope}})
        return fingerprint_config(_configuration(SimpleNamespace(hf_config=hf, max_model_len=max_model_len)))

    assert identity("longrope", 1024) != identity("longrope", 2048)
    assert identity("linear", 1024) == identity("linear", 2048)


@pytest.mark.parametrize(
    ("total", "n_ranks", "ranges"),
    [
        (8, 1, [(0, 8)]),
        (8, 2, [(0, 4), (4, 8)]),
        (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)]),  # each head on two ranks
        (1, 2, [(0, 1), (0, 1)]),
    ],
)
def test_each_rank_has_its_own_heads(total, n_ranks, ranges):
    from tenuto.connectors.vllm.translate import _head_range

    assert [_head_range(total, n_ranks, rank, max(1, total // n_ranks)) for rank in range(n_ranks)] == ranges


def test_heads_that_do_not_add_up_are_refused():
    from tenuto.connectors.vllm.translate import _head_range

    assert refusal(_head_range, 8, 2, 0, 8).startswith("tensor_parallel_size: 8 KV heads on each of 2 ranks")
