"""`TenutoConnector`: vLLM's `KVConnectorBase_V1` over a session."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

from tenuto.connectors.session import Handshake, Leader, MetricsEndpoint, StepPlan, Worker, WorkerReport, publish
from tenuto.connectors.vllm import versions
from tenuto.connectors.vllm.stats import StatsFeed, TenutoPromMetrics, TenutoStats
from tenuto.connectors.vllm.translate import (
    Adapters,
    VllmRequest,
    declared_format,
    make_setup,
    number_layers,
    order_layers,
    progress_of,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


@dataclass
class TenutoMetadata(KVConnectorMetadata):
    """Scheduler → workers."""

    plan: StepPlan


@dataclass
class TenutoHandshake(KVConnectorHandshakeMetadata):
    """Worker → scheduler at start."""

    shake: Handshake


@dataclass
class TenutoWorkerMetadata(KVConnectorWorkerMetadata):
    """Workers → scheduler, after a step."""

    report: WorkerReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Merge another rank's."""
        assert isinstance(other, TenutoWorkerMetadata)
        self.report.merge(other.report)
        return self


class TenutoConnector(KVConnectorBase_V1):
    """The scheduler side or the worker side, by `role`."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _log_like_vllm()
        setup = make_setup(vllm_config, kv_cache_config)
        self._layer_names = list(kv_cache_config.kv_cache_groups[0].layer_names)
        self._layer_numbers = number_layers(self._layer_names)
        self._has_layered = False
        """Whether this step has loads that its layers wait for."""
        self._leader: Leader | None = None
        self._feed: StatsFeed | None = None
        self._endpoint: MetricsEndpoint | None = None
        self._worker: Worker | None = None
        self._failed_pages: set[int] = set()
        self._page_pool: BlockPool | None = None
        self._requests: dict[str, VllmRequest] = {}
        self._adapters = Adapters()
        if role is KVConnectorRole.SCHEDULER:
            self._leader = Leader(setup)
            publish(self._leader)
            self._feed = StatsFeed(self._leader.recorder)
            if port := setup.config.runtime.metrics_port:
                index = setup.engine_index
                self._endpoint = MetricsEndpoint(port + index, self._leader.recorder, str(index))
            if versions.set_to_recompute(vllm_config):
                logger.info("tenuto: kv_load_failure_policy set to recompute: a failed load is computed instead")
        else:
            self._worker = Worker(setup, vllm_config.parallel_config.rank)

    @property
    def leader(self) -> Leader:
        """The scheduler half; only on that side."""
        assert self._leader is not None, "not the scheduler side"
        return self._leader

    @property
    def worker(self) -> Worker:
        """The worker half; only on that side."""
        assert self._worker is not None, "not the worker side"
        return self._worker

    @property
    def requires_kv_delivery(self) -> bool:
        """A save that is dropped is a future miss, no more."""
        return False

    # -- worker side --------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the KV tensors."""
        tensors = order_layers(kv_caches, self._layer_names)
        self.worker.register(tensors, declared_format(tensors))

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """What was found on disk."""
        return TenutoHandshake(self.worker.handshake())

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Every step, before pages that requests have lost are overwritten."""
        if self._worker is not None and isinstance(kv_connector_metadata, TenutoMetadata):
            self._worker.before_forward(kv_connector_metadata.plan)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:  # noqa: ARG002
        """Start loads and disk writes; where layers won't be asked for, wait for those that they need."""
        plan = self._plan()
        self.worker.begin_step(plan)
        self._has_layered = bool(plan.layered)
        if plan.layered and not versions.calls_layer_hooks(forward_context):
            self.worker.load_layers()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Have this layer's attention come after its load."""
        if self._has_layered and (number := self._layer_numbers.get(layer_name)) is not None:
            self.worker.load_layer(number)

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any  # noqa: ARG002
    ) -> None:  # fmt: skip
        """Copy what this step fills of the layer, while later ones compute."""
        if (number := self._layer_numbers.get(layer_name)) is not None:
            self.worker.store_layer(number)

    def wait_for_save(self) -> None:
        """Copy what this step filled into host memory."""
        self.worker.end_forward(self._plan())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002
        """Requests whose load has ended, failed or not."""
        news = self.worker.poll()
        self._failed_pages |= news.failed_pages
        return None, news.finished or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Engine blocks to compute after all."""
        failed, self._failed_pages = self._failed_pages, set()
        return failed

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Results for the scheduler side."""
        report = self.worker.report()
        return None if report is None else TenutoWorkerMetadata(report)

    def shutdown(self) -> None:
        """Drain pending writes; send the last events; free the metrics port."""
        if self._worker is not None:
            self._worker.shutdown()
        if self._leader is not None:
            self._leader.feed.close()
        if self._endpoint is not None:
            self._endpoint.close()

    # -- scheduler side -----------------------------------------------------------------------------

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        """Hear from the workers."""
        shakes = {rank: shake.shake for rank, shake in metadata.items() if isinstance(shake, TenutoHandshake)}
        self.leader.connect(shakes)

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """Take the engine's pages, for what was not loaded to be found by nobody."""
        self._page_pool = gpu_block_pool

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that can be loaded, and whether the request waits for all of them before it runs."""
        n = self.leader.lookup(self._view(request), num_computed_tokens)
        return n, bool(n) and not self.leader.is_layered(request.request_id)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Arm the load."""
        pages = blocks.get_block_ids()[0]
        self.leader.admit(request.request_id, pages, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """The step's plan."""
        is_idle = not scheduler_output.num_scheduled_tokens
        preempted = scheduler_output.preempted_req_ids or ()
        progress = progress_of(scheduler_output, self._requests, self.leader.filling.due)
        n_tokens = scheduler_output.total_num_scheduled_tokens
        return TenutoMetadata(self.leader.plan_step(progress, is_idle=is_idle, preempted=preempted, n_tokens=n_tokens))

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Take in the workers' results."""
        if (pages := connector_output.invalid_block_ids) and self._page_pool is not None:
            # vLLM leaves them in its prefix cache, for others to find before they were computed again, if they ever are
            self._page_pool.evict_blocks(self.leader.unproven.standing_on(pages))
        metadata = connector_output.kv_connector_worker_meta
        if isinstance(metadata, TenutoWorkerMetadata):
            self.leader.receive(metadata.report)

    def take_events(self) -> Iterable[KVCacheEvent]:
        """None of ours. vLLM calls this once when it has a step's result, whatever the step was."""
        self.leader.gate.step_ended()
        return ()

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002
        """Nothing keeps the pages: what is still to be copied out of them is, before the next step overwrites them."""
        self.leader.finish(request.request_id)
        self._requests.pop(request.request_id, None)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Keep stepping while disk writes are on their way."""
        return self.leader.has_pending

    def reset_cache(self) -> bool | None:
        """Forget everything, on disk too."""
        self.leader.reset()
        return True

    def statistics(self) -> dict[str, int]:
        """Counters and occupancy, in tokens, blocks and bytes."""
        return self.leader.statistics()

    # -- metrics ------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """What was counted since the last call; the scheduler's side counts for all ranks."""
        return None if self._feed is None else self._feed.take(is_busy=bool(self._requests))

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """Stats that another process has sent."""
        return TenutoStats.received(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        """Our metrics for vLLM's `/metrics`."""
        return TenutoPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # -- both ---------------------------------------------------------------------------------------

    def _plan(self) -> StepPlan:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, TenutoMetadata)
        return metadata.plan

    def _view(self, request: Request) -> VllmRequest:
        view = self._requests.get(request.request_id)
        if view is None:
            view = self._requests[request.request_id] = VllmRequest(request, self._adapters)
        return view


def _log_like_vllm() -> None:
    """Give our log records vLLM's handlers, unless the application has set its own."""
    ours, theirs = logging.getLogger("tenuto"), logging.getLogger("vllm")
    if not ours.handlers and theirs.handlers:
        ours.handlers = list(theirs.handlers)
        ours.setLevel(theirs.level)
        ours.propagate = False
