"""A made-up engine: requests, pages, a scheduler's steps, and ranks that move names of blocks.

A page's content is the tuple of all tokens up to its end, which is what its keys and values depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tenuto.config import load_config
from tenuto.connectors.session import Handshake, Leader, Progress, Setup, WorkerReport
from tenuto.connectors.session.setup import N_BOUNCE
from tenuto.errors import Cause
from tenuto.testing.clock import FakeClock
from tenuto.testing.requests import FakeRequest
from tenuto.testing.simulation import SimulatedWorker
from tenuto.tiers.store import Capacity
from tenuto.tokens import HashChain
from tenuto.transfers.plan import Route
from tests.session.session_rig import BLOCK, LAYOUT, NAMESPACE, PAGE

PER = BLOCK // PAGE
Content = tuple[int, ...]


def content_of(tokens: list[int], page: int) -> Content:
    return tuple(tokens[: (page + 1) * PAGE])


class RankWorker(SimulatedWorker):
    """Also knows what is on its device's pages. `meaning`: what the pages of each block must hold."""

    def __init__(self, meaning: dict[bytes, list[Content]]) -> None:
        super().__init__()
        self.meaning = meaning
        self.device: dict[int, Content | None] = {}

    def start(self, number: int) -> None:
        transfer = self._jobs[number].transfer
        if transfer.route is Route.DEVICE_TO_HOST:
            for key, run in zip(transfer.keys, transfer.pages, strict=True):
                assert [self.device.get(page) for page in run.pages] == self.meaning[key.hash], "staged another block"
        super().start(number)

    def end(self, number: int, failures: Mapping[int, Cause] | None = None) -> None:
        transfer = self._jobs[number].transfer
        super().end(number, failures)
        if transfer.pages and transfer.route.is_load:
            failed = self.results[-1].failed
            for index, (key, run) in enumerate(zip(transfer.keys, transfer.pages, strict=True)):
                for at in range(run.first, len(run.pages)):
                    self.device[run.pages[at]] = None if index in failed else self.meaning[key.hash][at]


@dataclass(slots=True)
class Seq:
    """One request in the scheduler. `stale` loads count as failed, since the cache was reset under them."""

    view: FakeRequest
    chain: HashChain | None = None
    n_computed: int = 0
    pages: list[int] = field(default_factory=list[int])
    n_told: int = 0  # pages of its table that the leader has heard of
    is_running: bool = False
    awaited: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])  # (rank, transfer)
    load_runs: dict[int, tuple] = field(default_factory=dict[int, tuple])
    failed_pages: set[int] = field(default_factory=set[int])
    loads_to: int = 0
    is_stale: bool = False


class EngineModel:
    """`step` schedules, plans and computes; between steps the ranks' lanes are driven from outside."""

    def __init__(self, n_ranks: int, n_host: int, n_disk: int, *, keeps_trailing: bool = True) -> None:
        config = load_config({
            "tiers": {"host": {"capacity": (n_host + N_BOUNCE) * LAYOUT.extent_bytes}, "disk": {"path": "/unused"}}
        })  # fmt: skip
        self.clock = FakeClock()
        self.leader = Leader(Setup(config, NAMESPACE, LAYOUT, PAGE, "e", n_ranks, keeps_trailing), self.clock)
        shakes = [
            Handshake(rank, LAYOUT.extent_bytes, NAMESPACE.digest, Capacity(n_disk, False)) for rank in range(n_ranks)
        ]
        self.leader.connect(dict(enumerate(shakes)))
        self.meaning: dict[bytes, list[Content]] = {}
        self.ranks = [RankWorker(self.meaning) for _ in range(n_ranks)]
        self.seqs: dict[str, Seq] = {}
        self.n_requests = 0
        self.n_pages = 0
        self.freed: list[int] = []  # since the last step
        self.preempted: list[str] = []
        self.n_loaded_pages = 0

    def add(self, tokens: list[int]) -> None:
        self.n_requests += 1
        name = f"r{self.n_requests}"
        self.seqs[name] = Seq(FakeRequest(name, list(tokens)))

    def end(self, name: str) -> None:
        """A request ends, unless it loads: engines keep its pages until then."""
        if not self.seqs[name].awaited:
            self.freed += self.seqs.pop(name).pages
            self.leader.finish(name)

    def preempt(self, name: str) -> None:
        seq = self.seqs[name]
        if seq.is_running:
            self.freed += seq.pages
            self.preempted.append(name)
            seq.is_running, seq.n_computed, seq.pages, seq.n_told = False, 0, [], 0

    def step(
        self, chosen: list[str], n_local_pages: int, n_tokens: int, *, has_room: bool = True,
        failures: Mapping[int, Cause] | None = None,
    ) -> None:  # fmt: skip
        """One step: reports in, some waiting requests admitted if there is room, running ones go on by `n_tokens`.

        On the last rank, blocks in `failures` are not staged.
        """
        for rank, worker in enumerate(self.ranks):
            self._collect(rank, worker)
        for name in chosen:
            seq = self.seqs[name]
            if not seq.is_running and not seq.awaited:
                self._admit(seq, n_local_pages * PAGE, has_room=has_room)
        computed = [self._go_on(seq, n_tokens) for seq in self.seqs.values() if seq.is_running]
        told = [(seq.view, progress) for seq, progress, _ in computed if self._is_worth_telling(progress)]
        plan = self.leader.plan_step(told, is_idle=not computed, preempted=self.preempted)
        assert computed or not plan.after_forward, "copies after a forward that never comes"
        for name, awaited in plan.loads:
            seq = self.seqs[name]
            seq.awaited = {(rank, number) for rank in range(len(self.ranks)) for number in awaited}
            seq.load_runs = {t.id: t.pages for t in plan.now if t.id in awaited}
        for worker in self.ranks:
            worker.submit(plan.before_forward)
            worker.device |= dict.fromkeys(self.freed)  # others overwrite them
            worker.submit(plan.now)
            for seq, _, start in computed:
                self._compute(worker, seq, start)
            worker.submit(plan.after_forward, failures if worker is self.ranks[-1] else None)
        self.freed, self.preempted = [], []
        self.leader.check()

    def reset(self) -> None:
        self.leader.reset()
        for seq in self.seqs.values():
            seq.is_stale = bool(seq.awaited)

    # -- inside -------------------------------------------------------------------------------------

    def _admit(self, seq: Seq, n_local: int, *, has_room: bool) -> None:
        """Ask the leader beyond what the engine's own prefix cache has, which is copied here."""
        tokens = seq.view.tokens
        n_local = min(n_local, (len(tokens) - 1) // PAGE * PAGE)
        self._learn(seq)
        n_external = self.leader.lookup(seq.view, n_local)
        if n_external is None or not has_room:
            return
        seq.pages = self._new_pages(seq, (n_local + n_external) // PAGE)
        for worker in self.ranks:
            worker.device |= {seq.pages[at]: content_of(tokens, at) for at in range(n_local // PAGE)}
        self.leader.admit(seq.view.request_id, seq.pages, n_external)
        seq.n_computed, seq.loads_to, seq.is_stale = n_local, n_local + n_external, False
        if not n_external:
            seq.is_running = True

    def _learn(self, seq: Seq) -> None:
        """What the blocks of a request must hold, as far as its tokens are known."""
        chain, tokens = seq.chain, seq.view.tokens
        if chain is None:
            chain = seq.chain = HashChain(self.leader._namespace.digest, BLOCK)
        known = len(chain.hashes)
        chain.append(tokens[len(chain) :])
        for index in range(known, len(chain.hashes)):
            self.meaning[chain.hashes[index]] = [content_of(tokens, index * PER + at) for at in range(PER)]

    def _new_pages(self, seq: Seq, n: int) -> list[int]:
        """`n` pages in all; every page is used once, so that what is found on it was put there."""
        fresh = range(self.n_pages, self.n_pages + max(n - len(seq.pages), 0))
        self.n_pages = fresh.stop
        return [*seq.pages, *fresh]

    def _go_on(self, seq: Seq, n_tokens: int) -> tuple[Seq, Progress, int]:
        """The next tokens of a request; past its prompt it generates one at a time."""
        start, view = seq.n_computed, seq.view
        if start >= view.n_tokens - 1:
            view.tokens.append(7)
            self._learn(seq)
            n_tokens = 1
        start = min(start, view.n_tokens - 1)
        seq.n_computed = min(start + n_tokens, view.n_tokens)
        is_whole = seq.n_told == 0
        seq.pages = self._new_pages(seq, -(-seq.n_computed // PAGE))
        new, seq.n_told = seq.pages[seq.n_told :], len(seq.pages)
        return seq, Progress(view.request_id, seq.pages if is_whole else new, is_whole, seq.n_computed), start

    def _is_worth_telling(self, progress: Progress) -> bool:
        is_due = progress.n_computed >= self.leader.filling.due.get(progress.request_id, 0)
        return progress.is_whole_table or bool(progress.pages) or is_due

    def _compute(self, worker: RankWorker, seq: Seq, start: int) -> None:
        for at in range(start // PAGE):
            assert worker.device.get(seq.pages[at]) == content_of(seq.view.tokens, at), "computing on wrong bytes"
        for at in range(start // PAGE, seq.n_computed // PAGE):
            worker.device[seq.pages[at]] = content_of(seq.view.tokens, at)

    def _collect(self, rank: int, worker: RankWorker) -> None:
        """What one rank has to tell; a request whose load has ended everywhere runs from its first failed page."""
        report = WorkerReport()
        for result in worker.take():
            report.results[result.transfer_id] = [result]
            for seq in self.seqs.values():
                if (rank, result.transfer_id) in seq.awaited:
                    seq.awaited.discard((rank, result.transfer_id))
                    runs = seq.load_runs[result.transfer_id]
                    for index in range(len(runs)) if seq.is_stale else result.failed:
                        seq.failed_pages.update(runs[index].pages[runs[index].first :])
                    if not seq.awaited:
                        self._loaded(seq)
        self.leader.receive(report)
        self.leader.check()

    def _loaded(self, seq: Seq) -> None:
        good = [at for at in range(seq.loads_to // PAGE) if seq.pages[at] in seq.failed_pages]
        seq.n_computed = good[0] * PAGE if good else seq.loads_to
        for worker in self.ranks:
            for at in range(seq.n_computed // PAGE):
                found = worker.device.get(seq.pages[at])
                assert found == content_of(seq.view.tokens, at), f"{seq.view.request_id} was given wrong bytes"
                self.n_loaded_pages += 1
        self.leader.admit(seq.view.request_id, seq.pages, 0)
        seq.failed_pages, seq.is_running = set(), True
