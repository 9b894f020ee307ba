"""The scheduler side of a session."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from tenuto.connectors.session.health import DiskHealth
from tenuto.connectors.session.messages import Handshake, Reset, StepPlan, WorkerReport
from tenuto.connectors.session.setup import Setup
from tenuto.connectors.session.tracker import Progress, RequestTracker, RequestView
from tenuto.errors import ConfigError
from tenuto.manager import BlockManager, Limits, Miss, Pending
from tenuto.pools import Pool
from tenuto.tiers.store import Capacity
from tenuto.tokens import HashChain
from tenuto.transfers.plan import Transfer, TransferResult, merge_results

logger = logging.getLogger(__name__)


class Leader:
    """Turns an engine's scheduling into manager calls. One thread: the scheduler's."""

    def __init__(self, setup: Setup, clock: Callable[[], float] = time.monotonic) -> None:
        self.setup = setup
        self.manager = BlockManager(
            Pool("host", setup.n_host_slots),
            Pool("disk") if setup.has_disk else None,
            Limits(max_writes=setup.max_writes),
        )
        self.counters: Counter[str] = Counter()
        """Tokens asked for and found, and loads."""
        self._namespace = setup.namespace
        self._health = DiskHealth(self.manager, setup.config.runtime.retry_s, clock)
        self._trackers: dict[str, RequestTracker] = {}
        self._now: list[Transfer] = []
        self._loads: list[tuple[str, frozenset[int]]] = []
        self._loading: dict[int, str] = {}  # requests, by the transfers their loads wait for
        self._resets: list[Reset] = []
        self._disks: dict[int, Capacity] = {}  # by rank
        self._is_connected = False
        """Whether it was heard what is on disk; before, its slots must not be used."""
        self._partial: dict[int, list[TransferResult]] = {}  # results that not all ranks have given

    # -- start --------------------------------------------------------------------------------------

    def connect(self, workers: Mapping[int, Handshake]) -> None:
        """Take in what the workers have. Raises `ConfigError` when a rank differs from this side."""
        shakes = list(workers.values())
        for shake in shakes:
            mine = (self.setup.layout.extent_bytes, self._namespace.digest)
            if (shake.extent_bytes, shake.namespace) != mine:
                raise ConfigError(
                    f"rank {shake.rank} sees another model or geometry than the scheduler; "
                    "start all processes from the same model folder and settings"
                )
        if self.manager.disk is not None and not shakes:
            logger.warning(
                "tenuto: the disk tier is off: no worker said what it has there; under MultiConnector, "
                "name TenutoConnector before connectors that have something to say at start"
            )
            return
        self._is_connected = self.manager.disk is not None
        self._disks = {shake.rank: shake.disk for shake in shakes if shake.disk is not None}
        if self.manager.disk is None or len(self._disks) < len(shakes):
            return
        n_slots = self._resize_disk()
        common = set(shakes[0].recovered).intersection(*(shake.recovered for shake in shakes[1:]))
        found = [e for e in shakes[0].recovered if e in common and e[0] < n_slots]
        self.manager.restore_disk(found)
        for volume, entries in shakes[0].peers.items():
            self.manager.peers.add(volume, entries)
        logger.info(
            "tenuto: disk tier: %d blocks found here, %d of other engines, %d slots so far",
            len(found), len(self.manager.peers), n_slots,
        )  # fmt: skip

    # -- requests -----------------------------------------------------------------------------------

    def lookup(self, view: RequestView, n_computed: int) -> int | None:
        """Tokens beyond `n_computed` that can be loaded; None: ask again at the next step.

        May be asked any number of times; a hit stays leased until it is admitted or the request ends.
        """
        if not (view.is_cacheable and view.may_read):
            return 0
        tracker = self._track(view)
        if tracker.is_stale or not tracker.may_load:
            return 0
        if tracker.hit is not None and tracker.hit_at == n_computed:
            return self._n_external(tracker)
        tracker.drop_hit()
        tracker.extend(view.n_tokens)
        block_tokens = self.setup.layout.block_tokens
        match self.manager.lookup(tracker.chain, n_computed // block_tokens):
            case Pending():
                return None
            case Miss():
                return 0
            case hit:
                tracker.hit, tracker.hit_at = hit, n_computed
        n_external = self._n_external(tracker)
        if n_external <= 0:
            tracker.drop_hit()
        return max(n_external, 0)

    def admit(self, request_id: str, pages: Sequence[int], n_external: int) -> None:
        """The engine gave the request these pages, `n_external` tokens of which are to be loaded."""
        tracker = self._trackers.get(request_id)
        if tracker is None or tracker.hit is None:
            return
        if n_external == 0:
            tracker.drop_hit()
            return
        hit, tracker.hit = tracker.hit, None
        setup = self.setup
        tracker.pages = list(pages[: (tracker.hit_at + n_external) // setup.page_tokens])
        skipped = tracker.hit_at - hit.start * setup.layout.block_tokens
        runs = tracker.runs(hit.start, hit.start + hit.n_blocks, skipped // setup.page_tokens)
        onboard = self.manager.onboard(hit, runs)
        self._now += onboard.transfers
        self._loads.append((request_id, onboard.awaited))
        self._loading.update(dict.fromkeys(onboard.awaited, request_id))
        self.counters["tokens.loaded"] += n_external
        self.counters["loads"] += 1
        if self.counters["loads"] == 1:
            logger.info("tenuto: the first hit: %d of %d tokens are loaded", n_external, tracker.view.n_tokens)

    def finish(self, request_id: str) -> None:
        """The request has ended, for whatever reason."""
        tracker = self._trackers.pop(request_id, None)
        if tracker is not None:
            tracker.drop_hit()

    # -- steps --------------------------------------------------------------------------------------

    def plan_step(self, scheduled: Iterable[tuple[RequestView, Progress]]) -> StepPlan:
        """What the workers have to do in this step."""
        self._health.update()
        after_forward: list[Transfer] = []
        is_idle = True
        for view, progress in scheduled:
            is_idle = False
            after_forward += self._keep(view, progress)
        now = [*self._now, *self.manager.pump()]
        plan = StepPlan(tuple(now), tuple(after_forward), tuple(self._loads), tuple(self._resets), is_idle)
        self._now, self._loads, self._resets = [], [], []
        return plan

    def receive(self, report: WorkerReport) -> None:
        """Take in what the workers did."""
        for transfer_id in sorted(report.results):
            results = self._partial.setdefault(transfer_id, [])
            results += report.results[transfer_id]
            if len(results) == self.setup.world_size:
                del self._partial[transfer_id]
                result = merge_results(results)
                self._ended(result)
        if report.disks and self._is_connected:
            self._disks |= report.disks
            if len(self._disks) == self.setup.world_size:
                self._resize_disk()
        for volume, entries in report.peers.items():
            self.manager.peers.add(volume, entries)
        self.manager.take_facts()  # nobody subscribes yet

    def reset(self) -> None:
        """Forget everything that was computed so far, here and on disk."""
        epoch = secrets.randbits(62) | 1
        self._namespace = self.setup.namespace.at_epoch(epoch)
        for tracker in self._trackers.values():
            tracker.drop_hit()
            tracker.is_stale = True
        self.manager.reset()
        self._resets.append(Reset(self._namespace.digest, epoch))

    @property
    def has_pending(self) -> bool:
        """Whether steps are needed for what is on its way, though no request is running."""
        return self.manager.has_pending or bool(self._now or self._resets)

    def statistics(self) -> dict[str, int]:
        """Counters and occupancy; see `BlockManager.statistics`."""
        return self.manager.statistics() | dict(self.counters) | {"requests": len(self._trackers)}

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        self.manager.check()

    # -- inside -------------------------------------------------------------------------------------

    def _ended(self, result: TransferResult) -> None:
        """A transfer has ended on all ranks."""
        tracker = self._trackers.get(self._loading.pop(result.transfer_id, "no load"))
        if tracker is not None and result.failures:
            tracker.may_load = False
        transfer = self.manager.complete(result)
        self._health.note(transfer.route, result)

    def _resize_disk(self) -> int:
        """A slot has the same number on every rank: there are as many as the smallest has."""
        n_slots = min(disk.n_slots for disk in self._disks.values())
        least = [disk for disk in self._disks.values() if disk.n_slots == n_slots]
        self.manager.resize_disk(n_slots, is_growing=all(disk.is_growing for disk in least))
        return n_slots

    def _track(self, view: RequestView) -> RequestTracker:
        tracker = self._trackers.get(view.request_id)
        if tracker is None:
            layout = self.setup.layout
            chain = HashChain(self._namespace.digest, layout.block_tokens, view.extra)
            tracker = RequestTracker(view, chain, self.setup.pages_per_block)
            self._trackers[view.request_id] = tracker
            self.counters["tokens.asked"] += view.n_prompt_tokens
        return tracker

    def _n_external(self, tracker: RequestTracker) -> int:
        assert tracker.hit is not None
        end = (tracker.hit.start + tracker.hit.n_blocks) * self.setup.layout.block_tokens
        return end - tracker.hit_at

    def _keep(self, view: RequestView, progress: Progress) -> list[Transfer]:
        """Stage the blocks that this step fills."""
        if not view.is_cacheable:
            return []
        tracker = self._track(view)
        if progress.is_whole_table:
            tracker.pages = list(progress.pages)
        else:
            tracker.pages += progress.pages
        n_known = view.n_tokens
        if not self.setup.config.runtime.cache_generated:
            n_known = view.n_prompt_tokens
        n_full = min(progress.n_computed, n_known) // self.setup.layout.block_tokens
        if not self.setup.keeps_trailing_block:
            n_full -= 1
        if n_full <= tracker.n_stored or tracker.is_stale:
            return []
        tracker.extend(n_full * self.setup.layout.block_tokens)
        start, tracker.n_stored = tracker.n_stored, n_full
        return self.manager.offload(tracker.chain, start, n_full, tracker.runs(start, n_full))
