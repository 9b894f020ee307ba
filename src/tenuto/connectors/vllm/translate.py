"""vLLM's objects in tenuto's terms."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from vllm.config import ModelConfig, VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, MLAAttentionSpec

from tenuto.config import Events
from tenuto.connectors.session.fingerprint import fingerprint_config, fingerprint_weights
from tenuto.connectors.session.setup import Setup
from tenuto.connectors.session.tracker import Progress
from tenuto.connectors.vllm import versions
from tenuto.errors import ConfigError, UnsupportedModelError
from tenuto.events.routers import EngineEndpoints, bound_endpoints
from tenuto.memory.formats import DTYPES, PACKED_HND, KvFormat
from tenuto.memory.layout import ExtentLayout, choose_block_tokens
from tenuto.settings import load_settings
from tenuto.tokens import ExtraKeys, MediaSpan, Namespace

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)

_LAYER = re.compile(r"\.(\d+)\.")


def make_setup(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> Setup:
    """Settings, identity and geometry. Raises `ConfigError` for what can't be served exactly."""
    transfer = vllm_config.kv_transfer_config
    assert transfer is not None
    config = load_settings(transfer.kv_connector_extra_config)
    if transfer.kv_role != "kv_both":
        raise ConfigError(f'kv_role: tenuto stores and loads, not {transfer.kv_role} alone; give "kv_both"')
    _refuse_unsupported(vllm_config)
    parallel = vllm_config.parallel_config
    spec = _only_spec(kv_cache_config, parallel.tensor_parallel_size)
    n_layers = len(kv_cache_config.kv_cache_groups[0].layer_names)
    n_heads = spec.num_kv_heads
    k_dim, v_dim = versions.row_sizes(spec)
    heads = _head_range(
        vllm_config.model_config.get_total_num_kv_heads(), parallel.tensor_parallel_size,
        parallel.rank % parallel.tensor_parallel_size, n_heads,
    )  # fmt: skip
    dtype = DTYPES.get(spec.dtype)
    if dtype is None:
        raise UnsupportedModelError(f"kv_cache_dtype: {spec.dtype} is not supported; use auto, float16 or bfloat16")
    token_bytes = n_heads * (k_dim + v_dim) * dtype.itemsize
    block_tokens = choose_block_tokens(config.layout.block_tokens, spec.block_size, token_bytes)
    layout = ExtentLayout(block_tokens, (0, n_layers), heads, k_dim, v_dim, dtype)
    return Setup(
        config=config,
        namespace=_namespace(vllm_config, layout, config.model.weights),
        layout=layout,
        page_tokens=spec.block_size,
        engine_id=transfer.engine_id or "",
        world_size=parallel.world_size,
        keeps_trailing_block=vllm_config.speculative_config is None,
        max_model_len=vllm_config.model_config.max_model_len,
        is_async_scheduled=bool(vllm_config.scheduler_config.async_scheduling),
        max_step_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        engine_index=parallel.data_parallel_index,
        engine_events=_engine_events(vllm_config, config.events),
    )


def _engine_events(vllm_config: VllmConfig, events: Events) -> EngineEndpoints | None:
    """Where the engine tells what its device has, if it does and it is wanted. Raises `ConfigError`."""
    theirs = vllm_config.kv_events_config
    is_wanted = events.router_url and events.router_schema == "dynamo" and events.engine_url == "auto"
    if theirs is None or not is_wanted or not theirs.enable_kv_cache_events or theirs.publisher != "zmq":
        return None
    rank = vllm_config.parallel_config.data_parallel_index
    return bound_endpoints(theirs.endpoint, theirs.replay_endpoint, theirs.topic, rank)


def number_layers(names: Sequence[str]) -> dict[str, int]:
    """The place of each of these layers in an extent."""
    return {name: number for number, name in enumerate(sorted(names, key=_layer_number))}


def order_layers(kv_caches: dict[str, torch.Tensor], names: Sequence[str]) -> list[torch.Tensor]:
    """The tensors of these layers, by layer number."""
    return [kv_caches[name] for name in number_layers(names)]


def declared_format(tensors: Sequence[torch.Tensor]) -> KvFormat | None:
    """What shapes alone may not tell: four axes are heads before tokens in vLLM, whatever their order in memory."""
    return PACKED_HND if all(tensor.dim() == 4 for tensor in tensors) else None


class Adapters:
    """Fingerprints of LoRA adapters, taken when vLLM first loads them."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], str] = {}

    def fingerprint(self, lora: LoRARequest | None) -> str:
        """Empty for no adapter. Raises `OSError` when its files are not in a local folder."""
        if lora is None:
            return ""
        name = (lora.lora_int_id, lora.lora_path)
        if name not in self._known or lora.load_inplace:
            self._known[name] = fingerprint_weights(Path(lora.lora_path))
        return self._known[name]


class VllmRequest:
    """A vLLM request as a `RequestView`."""

    def __init__(self, request: Request, adapters: Adapters) -> None:
        self._request = request
        self.request_id = request.request_id
        self.may_read = not request.skip_reading_prefix_cache
        # Embeddings are not told by token ids, and a streamed session's tokens may be taken back.
        self.is_cacheable = (
            request.prompt_embeds is None and request.prompt_token_ids is not None and not versions.may_change(request)
        )
        fingerprint = ""
        try:
            fingerprint = adapters.fingerprint(request.lora_request)
        except OSError as error:
            self.is_cacheable = False
            logger.warning("tenuto: prompts of a LoRA adapter are not cached: %s", error)
        self.extra = _extra_keys(request, fingerprint)

    @property
    def n_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self._request.num_tokens

    @property
    def n_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._request.num_prompt_tokens

    def token_ids(self, start: int, stop: int) -> Sequence[int]:
        """Token ids [start, stop)."""
        return self._request.all_token_ids[start:stop]


def progress_of(
    output: SchedulerOutput, requests: Mapping[str, VllmRequest], due: Mapping[str, int]
) -> Iterator[tuple[VllmRequest, Progress]]:
    """The requests that new pages or full blocks make worth looking at: few of those that generate."""
    scheduled = output.num_scheduled_tokens
    for new in output.scheduled_new_reqs:
        if view := requests.get(new.req_id):
            n_new = scheduled[new.req_id]
            yield view, Progress(new.req_id, new.block_ids[0], True, new.num_computed_tokens + n_new, n_new)
    cached = output.scheduled_cached_reqs
    for request_id, pages, n_computed in zip(
        cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
    ):
        if pages is None and n_computed + scheduled[request_id] < due.get(request_id, 0):
            continue
        if view := requests.get(request_id):
            is_whole = request_id in cached.resumed_req_ids
            n_new = scheduled[request_id]
            yield view, Progress(request_id, pages[0] if pages else (), is_whole, n_computed + n_new, n_new)


def _refuse_unsupported(vllm_config: VllmConfig) -> None:
    parallel = vllm_config.parallel_config
    too_many = {
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "prefill_context_parallel_size": versions.prefill_context_parallel_size(vllm_config),
        "decode_context_parallel_size": parallel.decode_context_parallel_size,
    }
    for setting, size in too_many.items():
        if size > 1:
            raise UnsupportedModelError(
                f"{setting}: {size} is not supported by tenuto yet; use 1, or start without tenuto"
            )
    if versions.measures_scales(vllm_config):
        raise UnsupportedModelError(
            "calculate_kv_scales: scales that each start measures anew make caches that can't be shared; leave it off"
        )


def _only_spec(kv_cache_config: KVCacheConfig, tensor_parallel_size: int = 1) -> FullAttentionSpec:
    groups = kv_cache_config.kv_cache_groups
    if not groups:
        raise UnsupportedModelError("this model has no KV cache to keep; start vLLM without tenuto")
    if len(groups) != 1:
        raise UnsupportedModelError(
            f"this model has {len(groups)} KV cache groups, tenuto serves one: start vLLM with "
            "--disable-hybrid-kv-cache-manager, or without tenuto"
        )
    spec = groups[0].kv_cache_spec
    if isinstance(spec, MLAAttentionSpec):
        if tensor_parallel_size > 1:  # every rank holds the same latents; one writer for all is not there yet
            raise UnsupportedModelError(
                f"tensor_parallel_size: {tensor_parallel_size} is not supported by tenuto yet for models with one "
                "latent (MLA); use 1, or start without tenuto"
            )
        if versions.is_plain_latent(spec):
            return spec
    elif isinstance(spec, FullAttentionSpec):
        k_dim, v_dim = versions.row_sizes(spec)
        if k_dim == v_dim:
            return spec
    raise UnsupportedModelError(
        f"this model's KV cache ({type(spec).__name__}) is not supported by tenuto yet, only full attention with "
        "equal K and V heads or one latent (MLA) is; start vLLM without tenuto"
    )


def _head_range(total: int, n_ranks: int, rank: int, n_heads: int) -> tuple[int, int]:
    """The KV heads of a tensor-parallel rank, half-open. Several ranks have the same one when there are too few."""
    if n_ranks == 1:
        return 0, n_heads
    start = rank * total // n_ranks
    if n_heads != max(1, total // n_ranks):
        raise UnsupportedModelError(
            f"tensor_parallel_size: {n_heads} KV heads on each of {n_ranks} ranks are not the model's {total}; "
            "start vLLM without tenuto"
        )
    return start, start + n_heads


def _namespace(vllm_config: VllmConfig, layout: ExtentLayout, weights: str) -> Namespace:
    model = vllm_config.model_config
    quantisation = {
        "weights": model.quantization,
        "kv": vllm_config.cache_config.cache_dtype,
        "model": getattr(model.hf_config, "quantization_config", None),
    }
    return Namespace(
        model=str(model.model),
        config=fingerprint_config(_configuration(model)),
        weights=_weights(vllm_config, weights),
        compute_dtype=str(model.dtype).removeprefix("torch."),
        kv_dtype=layout.dtype.name.lower(),
        quantisation=msgspec.json.encode(_plain(quantisation)).decode(),
        block_tokens=layout.block_tokens,
        n_layers=layout.n_layers,
        n_kv_heads=model.get_total_num_kv_heads(),
        k_dim=layout.k_dim,
        v_dim=layout.v_dim,
    )


def _configuration(model: ModelConfig) -> dict[str, Any]:
    """What the model computes with. LongRoPE chooses its factors by the longest prompt allowed."""
    config = model.hf_config.to_dict()
    is_long = "longrope" in str(config) or "'su'" in str(config)
    return config | ({"max_model_len": model.max_model_len} if is_long else {})


def _weights(vllm_config: VllmConfig, name: str) -> str:
    """What tells the weights; each way has a prefix of its own, so that no name is ever a fingerprint."""
    model = vllm_config.model_config
    if vllm_config.load_config.load_format == "dummy":
        return f"dummy:{model.seed}"
    if name != "auto":
        return f"named:{name}"
    path = Path(model.model)
    if path.exists():
        try:
            return fingerprint_weights(path)
        except FileNotFoundError as error:
            raise ConfigError(f"model: {error}, so nothing tells it from others; start vLLM without tenuto") from error
    from transformers.utils.hub import cached_file  # the file a hub name was resolved to

    found = cached_file(model.model, "config.json", revision=model.revision, local_files_only=True)
    if found is None:
        raise ConfigError(f"model: no local files of {model.model} were found to tell it by")
    return fingerprint_weights(Path(found).parent)


def _extra_keys(request: Request, lora_fingerprint: str) -> ExtraKeys:
    lora = request.lora_request
    media = tuple(
        MediaSpan(
            feature.identifier,
            feature.mm_position.offset,
            feature.mm_position.offset + feature.mm_position.length,
        )
        for feature in request.mm_features
    )
    return ExtraKeys(
        lora_name=lora.lora_name if lora else "",
        lora_fingerprint=lora_fingerprint,
        salt=request.cache_salt or "",
        media=media,
    )


def _layer_number(name: str) -> int:
    match = _LAYER.search(f".{name}.")
    if match is None:
        raise UnsupportedModelError(f"layer {name!r} has no number in its name")
    return int(match[1])


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return value if isinstance(value, str | int | float | bool | None | list) else str(value)
