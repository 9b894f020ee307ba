"""A leader with made-up requests and no worker: transfers are answered by hand."""

from __future__ import annotations

from tenuto.config import load_config
from tenuto.connectors.session import Handshake, Leader, Progress, Setup, StepPlan, WorkerReport
from tenuto.errors import Cause
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.testing.clock import FakeClock
from tenuto.testing.requests import FakeRequest
from tenuto.tiers.store import Capacity
from tenuto.tokens import ExtraKeys, Namespace
from tenuto.transfers.plan import BlockFailure, Route, TransferResult

PAGE, BLOCK = 4, 8
NAMESPACE = Namespace("m", "c", "w", "float32", "float32", "none", BLOCK, 2, 1, 16, 16)
LAYOUT = ExtentLayout(BLOCK, (0, 2), (0, 1), 16, 16, Dtype.FLOAT32)


class View(FakeRequest):
    """A request as an engine has it."""

    def __init__(self, name: str, tokens: list[int], n_prompt: int | None = None, salt: str = "") -> None:
        super().__init__(name, tokens, ExtraKeys(salt=salt))
        if n_prompt is not None:
            self.n_prompt_tokens = n_prompt


class Rig:
    def __init__(
        self,
        *,
        world_size: int = 1,
        n_host: int = 64,
        disk_slots: int = 64,
        keeps_trailing: bool = True,
        poll_s: float = 0,
        is_async_scheduled: bool = False,
        events: dict | None = None,
        policy: str = "default",
        admission: str = "default",
        engine_index: int = 0,
        **runtime,
    ) -> None:
        config = load_config({
            "tiers": {
                "host": {"capacity": n_host * LAYOUT.extent_bytes, "policy": policy},
                "disk": {"path": "/unused", "poll_s": poll_s, "policy": policy, "admission": admission},
            },
            "runtime": runtime, "events": events or {},
        })  # fmt: skip
        self.clock = FakeClock()
        setup = Setup(
            config, NAMESPACE, LAYOUT, PAGE, "e", world_size, keeps_trailing,
            is_async_scheduled=is_async_scheduled, engine_index=engine_index,
        )  # fmt: skip
        self.leader = Leader(setup, self.clock)
        self.world_size = world_size
        disk = Capacity(disk_slots, is_growing=False)
        shakes = [Handshake(rank, LAYOUT.extent_bytes, NAMESPACE.digest, disk) for rank in range(world_size)]
        self.leader.connect(dict(enumerate(shakes)))

    def step(self, *scheduled: tuple[View, int], pages_from: int = 100) -> StepPlan:
        """A step that computes each request up to so many tokens, with a whole table of made-up pages."""
        progress = [
            (view, Progress(view.request_id, range(pages_from, pages_from + -(-n // PAGE)), True, n))
            for view, n in scheduled
        ]
        return self.leader.plan_step(progress, is_idle=not scheduled)

    def answer(self, plan: StepPlan, *, failed: dict[Route, dict[int, Cause]] | None = None) -> None:
        """Every rank did all that was planned, but for these failures of one rank."""
        report = WorkerReport()
        for transfer in (*plan.before_forward, *plan.now, *plan.after_forward):
            wrong = (failed or {}).get(transfer.route, {})
            bad = tuple(BlockFailure(index, cause) for index, cause in wrong.items())
            results = [TransferResult(transfer.id, bad)]
            results += [TransferResult(transfer.id) for _ in range(self.world_size - 1)]
            report.results[transfer.id] = results
        self.leader.receive(report)
        self.leader.check()

    def compute(self, view: View) -> None:
        """Compute a request whole, keep its blocks in host memory and on disk, and end it."""
        self.answer(self.step((view, view.n_tokens)))
        self.leader.finish(view.request_id)

    def grow(self, n_slots: int, *, is_growing: bool) -> None:
        self.leader.receive(WorkerReport(disks={0: Capacity(n_slots, is_growing)}))
