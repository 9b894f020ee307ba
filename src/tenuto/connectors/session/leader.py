"""The scheduler side of a session."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from tenuto.connectors.session.costgate import CostGate
from tenuto.connectors.session.filling import Filling
from tenuto.connectors.session.loads import Loads
from tenuto.connectors.session.messages import Handshake, Reset, StepPlan, WorkerReport
from tenuto.connectors.session.onboarding import Situation, Unproven
from tenuto.connectors.session.ranks import Ranks, refuse_others
from tenuto.connectors.session.recording import make_manager
from tenuto.connectors.session.setup import Setup
from tenuto.connectors.session.tracker import Progress, RequestTracker, RequestView
from tenuto.events.feed import Feed
from tenuto.manager import DiskHealth, Filled, Miss, Pending, n_pairs
from tenuto.metrics import LOOKUP_SECONDS, REQUESTS, Recorder, series
from tenuto.tiers.store import Capacity
from tenuto.tokens import HashChain
from tenuto.transfers.plan import Transfer, TransferResult

logger = logging.getLogger(__name__)


class Leader:
    """Turns an engine's scheduling into manager calls. One thread: the scheduler's."""

    def __init__(self, setup: Setup, clock: Callable[[], float] = time.monotonic) -> None:
        self.setup = setup
        self.recorder = Recorder()
        self.recorder.watch(lambda: {series(REQUESTS): len(self._trackers)})
        self.manager = make_manager(setup, self.recorder, clock)
        self.feed = Feed(self.manager.take_facts)
        self._clock = clock
        self._namespace = setup.namespace
        self._health = DiskHealth(self.manager, setup.config.runtime.retry_s, clock)
        self._trackers: dict[str, RequestTracker] = {}
        self.filling = Filling(setup)
        self._before: list[Transfer] = []  # out of pages that the engine gives to others
        self._now: list[Transfer] = []
        self._layered: list[Transfer] = []
        self.unproven = Unproven(setup)
        self._loads: list[tuple[str, frozenset[int]]] = []
        self.gate = CostGate(setup, self.recorder, clock)
        """Wants to be told when the result of each step has come."""
        self._loading = Loads(self.recorder, self.gate, setup.layout.block_tokens, clock)
        self._resets: list[Reset] = []
        self._is_connected = False
        """Whether it was heard what is on disk; before, its slots must not be used."""
        self._ranks = Ranks(setup.world_size, setup.config.tiers.disk.poll_s, clock)

    # -- start --------------------------------------------------------------------------------------

    def connect(self, workers: Mapping[int, Handshake]) -> None:
        """Take in what the workers have. Raises `ConfigError` when a rank differs from this side."""
        for line in filter(None, (self.setup.shortage, self.setup.held_back)):
            logger.warning("tenuto: %s", line)
        shakes = list(workers.values())
        refuse_others(shakes, self.setup.layout.extent_bytes, self._namespace.digest)
        if self.manager.disk is not None and not shakes:
            logger.warning(
                "tenuto: the disk tier is off: no worker said what it has there; under MultiConnector, "
                "name TenutoConnector before connectors that have something to say at start"
            )
            return
        self._is_connected = self.manager.disk is not None
        disk = self._resize_disk({rank: shake.disk for rank, shake in workers.items() if shake.disk is not None})
        if disk is None:
            return
        found = self._ranks.recovered(workers, disk.n_slots)
        self.manager.restore_disk(found)
        for volume, entries in self._ranks.peers({rank: shake.peers for rank, shake in workers.items()}):
            self.manager.restore_disk(entries, volume)
        self.feed()
        logger.info(
            "tenuto: disk tier: %d blocks found here, %d of other engines, %d slots so far",
            len(found), len(self.manager.peers), disk.n_slots,
        )  # fmt: skip

    # -- requests -----------------------------------------------------------------------------------

    def lookup(self, view: RequestView, n_computed: int) -> int | None:
        """Tokens beyond `n_computed` that can be loaded; None: ask again at the next step.

        May be asked any number of times; a hit stays leased until it is admitted or the request ends.
        """
        if self.unproven.is_shared(view, n_computed):
            return None
        if not (view.is_cacheable and view.may_read):
            return 0
        tracker = self._track(view)
        if tracker.is_stale or not tracker.may_load:
            return 0
        tracker.asked_at = n_computed
        if tracker.hit is not None and tracker.hit_at == n_computed:
            return tracker.n_external
        if tracker.refused_at == n_computed:
            return 0
        if self._is_connected and self._ranks.may_have_news():
            return None
        if tracker.waits_for is not None and self.manager.flights.is_bringing(tracker.waits_for):
            return None
        tracker.drop_hit()
        tracker.extend(view.n_tokens)
        block_tokens = self.setup.layout.block_tokens
        tracker.waits_for = tracker.refused_at = None
        tracker.gated.clear()
        self._health.update()
        began = self._clock()
        found = self.manager.lookup(tracker.chain, n_computed // block_tokens)
        self.recorder.observe(LOOKUP_SECONDS, self._clock() - began)
        match found:
            case Pending(block):
                tracker.waits_for = block
                return None
            case Miss():
                return 0
            case hit:
                tracker.hit, tracker.hit_at = hit, n_computed
        if tracker.n_external > 0:
            now = Situation(hit, n_computed, view.n_tokens, self._loading.n_computing(self._trackers))
            tracker.trim_hit(self.gate.choose(now, self._loading.queued()))
        if tracker.n_external <= 0:
            tracker.drop_hit()
        return tracker.n_external

    def is_layered(self, request_id: str) -> bool:
        """Whether the hit that `lookup` found is loaded under the forward that uses it."""
        tracker = self._trackers.get(request_id)
        return tracker is not None and tracker.is_layered

    def admit(self, request_id: str, pages: Sequence[int], n_external: int) -> None:
        """The engine gave the request these pages, `n_external` tokens of which are to be loaded."""
        tracker = self._trackers.get(request_id)
        if tracker is None:
            return
        self._loading.asked(tracker)
        if tracker.hit is None:
            return
        if n_external == 0:
            tracker.drop_hit()
            return
        # A reset of the engine's own cache may preempt a request and find it again before we are asked for a plan.
        self._before += self._offload(self.filling.take([request_id]))
        hit, tracker.hit = tracker.hit, None
        setup = self.setup
        tracker.pages = list(pages[: (tracker.hit_at + n_external) // setup.page_tokens])
        skipped = tracker.hit_at - hit.start * setup.layout.block_tokens
        runs = tracker.runs(hit.start, hit.start + hit.n_blocks, skipped // setup.page_tokens)
        self.feed.found(tracker.chain, hit.start + hit.n_blocks)
        onboard = self.manager.onboard(hit, runs)
        if tracker.is_layered:
            self._layered.extend(onboard.transfers)
            self.unproven.begin(tracker)
        else:
            self._now.extend(onboard.transfers)
            self._loads.append((request_id, onboard.awaited))
        if self._loading.begin(request_id, hit, tracker.hit_at, onboard, is_layered=tracker.is_layered):
            logger.info("tenuto: the first hit: %d of %d tokens are loaded", n_external, tracker.view.n_tokens)

    def finish(self, request_id: str) -> None:
        """The request has ended, for whatever reason."""
        self._before += self._offload(self.filling.end(request_id))
        tracker = self._trackers.pop(request_id, None)
        if tracker is not None:
            tracker.drop_hit()

    # -- steps --------------------------------------------------------------------------------------

    def plan_step(
        self, scheduled: Iterable[tuple[RequestView, Progress]], *, is_idle: bool, preempted: Iterable[str] = (),
        n_tokens: int = 0,
    ) -> StepPlan:  # fmt: skip
        """What the workers have to do in this step, which computes nothing at all when `is_idle`.

        Of `scheduled`, those may be left out that get no pages and stay below `filling.due`. `preempted` lose theirs.
        `n_tokens`: that the step computes, of all requests.
        """
        self._health.update()
        self._ranks.step()
        self._before += self._offload(self.filling.take(preempted))
        has_prompt = False
        n_prefill = pairs = 0
        for view, progress in scheduled:
            if progress.n_new > 1 and (began := progress.n_computed - progress.n_new) < view.n_prompt_tokens:
                n_prefill += progress.n_new
                pairs += n_pairs(began, progress.n_computed)
            if view.is_cacheable:
                has_prompt |= self.filling.note(self._track(view), progress)
            else:
                self.filling.ignore(view.request_id)
        # what is computed beside loads that may fail is not held back: it is kept with its step, or never
        is_due = has_prompt or bool(self._layered) or (not is_idle and self.filling.is_due())
        plan = StepPlan(
            before_forward=tuple(self._before),
            after_forward=tuple(self._offload(self.filling.take_all())) if is_due else (),
            now=(*self._now, *self.manager.pump()), layered=tuple(self._layered),
            loads=tuple(self._loads), resets=tuple(self._resets), is_idle=is_idle,
            timed=self.gate.step_planned(n_tokens, n_prefill, pairs),
        )  # fmt: skip
        self._before, self._now, self._layered, self._loads, self._resets = [], [], [], [], []
        self.unproven.planned()
        self.feed()
        return plan

    def receive(self, report: WorkerReport) -> None:
        """Take in what the workers did."""
        if report.timed:
            self.gate.step_told(report.timed, report.waited_s)
        for result in self._ranks.ended(report.results):
            self._ended(result)
        if report.disks:
            self._resize_disk(report.disks)
        for volume, entries in self._ranks.peers(report.peers):
            self.manager.restore_disk(entries, volume)
        if report.volumes and self.manager.disk is not None:
            self.manager.disk_changed(*self._ranks.volumes(report.volumes, self.manager.disk))
        self.feed()

    def reset(self) -> None:
        """Forget everything that was computed so far, here and on disk."""
        epoch = secrets.randbits(62) | 1
        self._namespace = self.setup.namespace.at_epoch(epoch)
        for tracker in self._trackers.values():
            tracker.drop_hit()
            tracker.is_stale = True
        self.filling.drop()
        self.manager.reset()
        self._loading.spoil()
        self._resets.append(Reset(self._namespace.digest, epoch))
        self.feed.rename(self._namespace.digest)

    @property
    def has_pending(self) -> bool:
        """Whether steps are needed for what is on its way, though no request is running."""
        return self.manager.has_pending or bool(self._now or self._layered or self._resets)

    def statistics(self) -> dict[str, int]:
        """Counters and occupancy; see `BlockManager.statistics`."""
        return self.manager.statistics()

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        self.manager.check()

    # -- inside -------------------------------------------------------------------------------------

    def _ended(self, result: TransferResult) -> None:
        """A transfer has ended on all ranks."""
        request_id = self._loading.end(result)
        tracker = self._trackers.get(request_id) if request_id is not None else None
        if tracker is not None and result.failures:
            tracker.may_load = False
        transfer = self.manager.complete(result)
        self._health.note(transfer.route, result)

    def _resize_disk(self, news: Mapping[int, Capacity]) -> Capacity | None:
        disk = self._ranks.disk(news) if self._is_connected else None
        if disk is not None:
            self.manager.resize_disk(disk.n_slots, is_growing=disk.is_growing, n_blocks=disk.n_blocks)
        return disk

    def _track(self, view: RequestView) -> RequestTracker:
        tracker = self._trackers.get(view.request_id)
        if tracker is None:
            layout = self.setup.layout
            chain = HashChain(self._namespace.digest, layout.block_tokens, view.extra)
            tracker = RequestTracker(view, chain, self.setup.pages_per_block)
            self._trackers[view.request_id] = tracker
        return tracker

    def _offload(self, filled: list[Filled]) -> list[Transfer]:
        return self.manager.offload(filled) if filled else []
