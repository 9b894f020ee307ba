"""TenutoConnector as vLLM's tests get to build it: with our settings, counted, and checked after each test."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.scheduler import Scheduler

from tenuto.connectors.session import WorkerReport
from tenuto.connectors.vllm import TenutoConnector
from tenuto.errors import Cause
from tenuto.transfers.plan import BlockFailure, Transfer, TransferResult

BUILT: list[Subject] = []
"""What the running test has built so far."""


class Subject(TenutoConnector):
    """As the only connector. Where a test runs a scheduler without workers, every copy asked for fails."""

    how = "by name"

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        groups = kv_cache_config.kv_cache_groups
        page_tokens = groups[0].kv_cache_spec.block_size if groups else 0
        vllm_config.kv_transfer_config.kv_connector_extra_config = _settings(page_tokens)
        super().__init__(vllm_config, role, kv_cache_config)
        self._has_workers = False
        self._unanswered: list[Transfer] = []
        BUILT.append(self)

    def set_xfer_handshake_metadata(self, metadata: Any) -> None:
        self._has_workers = True
        super().set_xfer_handshake_metadata(metadata)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        self._answer()  # a worker would have, within the step
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._answer()
        metadata = super().build_connector_meta(scheduler_output)
        if not self._has_workers:
            self._unanswered += metadata.plan.now + metadata.plan.after_forward
        return metadata

    def has_pending_push_work(self) -> bool:
        self._answer()
        return super().has_pending_push_work()

    def check(self) -> int:
        """Prompt tokens that were looked up; raises `InvariantError` unless the books balance."""
        if self._leader is None:
            return 0
        self._answer()
        self.leader.check()
        return self.leader.statistics().get("tokens.asked", 0)

    def _answer(self) -> None:
        """Nothing was copied: so no later request of the test hits, which no test here expects."""
        transfers, self._unanswered = self._unanswered, []
        if transfers:
            self.leader.receive(WorkerReport({t.id: [_nothing_moved(t)] for t in transfers}))


class Attached(Subject):
    """In an engine or scheduler that had no connector."""

    how = "attached"


class BesideMock(Subject):
    """Hears what vLLM's mock hears."""

    how = "beside the mock"


class ForNixl(Subject):
    """Where a test asks for NixlConnector, to put a mock in its place. It only consumes; ours does both."""

    how = "then mocked"

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        vllm_config.kv_transfer_config.kv_role = "kv_both"
        super().__init__(vllm_config, role, kv_cache_config)


def beside(mock: type[Any]) -> type[Any]:
    """Ours beside vLLM's mock, as `MultiConnector` would have it: the mock's answers count, ours hears every call."""

    class Beside(mock):
        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
            super().__init__(vllm_config, role, kv_cache_config)
            ours, theirs = _ours(), vllm_config.kv_transfer_config
            vllm_config.kv_transfer_config = ours
            self.subject = BesideMock(vllm_config, role, kv_cache_config)
            vllm_config.kv_transfer_config = theirs

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
            assert self.subject.get_num_new_matched_tokens(request, num_computed_tokens) == (0, False)
            return super().get_num_new_matched_tokens(request, num_computed_tokens)

        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
            self.subject.update_state_after_alloc(request, blocks, 0)
            super().update_state_after_alloc(request, blocks, num_external_tokens)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            self.subject.build_connector_meta(scheduler_output)
            return super().build_connector_meta(scheduler_output)

        def update_connector_output(self, connector_output: Any) -> None:
            self.subject.update_connector_output(connector_output)
            super().update_connector_output(connector_output)

        def request_finished(self, request: Any, block_ids: list[int]) -> Any:
            self.subject.request_finished(request, block_ids)
            return super().request_finished(request, block_ids)

    return Beside


def install() -> None:
    """Make the factory give ours: by name, in vLLM's recording wrapper, beside its mock, and where there is none."""
    ours = {"ExampleConnector": Subject, "NixlConnector": ForNixl, "Attached": Attached}
    of_config = KVConnectorFactory.get_connector_class.__func__

    def get_connector_class(cls: Any, config: Any) -> Any:
        if config.kv_connector in ours:
            return ours[config.kv_connector]
        chosen = of_config(cls, config)
        if chosen.__name__ == "TestExampleConnector":
            chosen.__init__.__globals__["ExampleConnector"] = Subject
        return beside(chosen) if chosen.__name__ == "MockKVConnector" else chosen

    KVConnectorFactory.get_connector_class = classmethod(get_connector_class)
    _attach()


def _attach() -> None:
    """Give engines and schedulers without a connector ours."""
    create, init = EngineArgs.create_engine_config, Scheduler.__init__

    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.kv_transfer_config = self.kv_transfer_config or _ours()
        return create(self, *args, **kwargs)

    def scheduler_init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        if vllm_config.kv_transfer_config is None:
            vllm_config.kv_transfer_config = _ours()
            vllm_config.scheduler_config.disable_hybrid_kv_cache_manager = True  # as vLLM does for such connectors
        init(self, vllm_config, *args, **kwargs)

    EngineArgs.create_engine_config = create_engine_config
    Scheduler.__init__ = scheduler_init


def _ours() -> KVTransferConfig:
    return KVTransferConfig(kv_connector="Attached", kv_role="kv_both")


def _nothing_moved(transfer: Transfer) -> TransferResult:
    failures = tuple(BlockFailure(i, Cause.CANCELLED) for i in range(len(transfer.keys)))
    return TransferResult(transfer.id, failures)


def _settings(page_tokens: int) -> dict[str, Any]:
    """Blocks as small as the engine's, so that short prompts fill some; a little memory and disk."""
    disk = {"path": _folder(), "capacity": "64 MiB"}
    runtime = {"cost_gate": False}
    tiers = {"host": {"capacity": "4 MiB"}, "disk": disk}
    return {"layout": {"block_tokens": page_tokens}, "tiers": tiers, "runtime": runtime}


def _folder() -> str:
    """Where the running test stores things: below the working directory, which the runner empties."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    folder = Path("stored", sha256(test.encode()).hexdigest()[:16]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
