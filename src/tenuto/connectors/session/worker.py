"""The worker side of a session: one per rank, beside the engine's memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import torch

from tenuto.connectors.session.devices import make_arena, make_device, make_driver
from tenuto.connectors.session.layers import LayeredWork
from tenuto.connectors.session.messages import Entries, Handshake, Reset, StepPlan, WorkerReport
from tenuto.connectors.session.setup import Setup
from tenuto.connectors.session.tracing import open_rank_trace
from tenuto.events.feed import worker_name
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.formats import KvFormat
from tenuto.memory.paged import PagedKV
from tenuto.memory.pages import PageRun
from tenuto.tiers.agent.agent import Identity
from tenuto.tiers.agent.tier import TierStore, open_tier
from tenuto.tiers.disk.volume import tell_distance, volume_of
from tenuto.tiers.sizes import N_BOUNCE
from tenuto.tiers.store import Capacity, StoreNews
from tenuto.tokens import BlockKey
from tenuto.traces import TraceFile
from tenuto.transfers.engine import TransferEngine
from tenuto.transfers.lanes import LANDED
from tenuto.transfers.layered import LayeredGathers
from tenuto.transfers.movers import Movers
from tenuto.transfers.plan import Transfer, TransferResult

logger = logging.getLogger(__name__)

_JOIN_S = 5.0
_IDLE_WAIT_S = 0.001
"""An engine without work spins through empty steps; waiting lets the lanes have the interpreter."""


@dataclass(slots=True)
class LoadNews:
    """Requests whose load has ended, and the engine pages that were not loaded after all."""

    finished: set[str] = field(default_factory=set[str])
    failed_pages: set[int] = field(default_factory=set[int])


@dataclass(slots=True)
class _Load:
    """A request's transfers that have not ended."""

    request_id: str
    awaited: set[int]
    is_stale: bool = False
    """The cache was reset meanwhile: all of it counts as failed."""


class Worker:
    """Runs a leader's plans. One thread, the engine's; lanes and pollers are behind it."""

    def __init__(self, setup: Setup, rank: int = 0) -> None:
        self.setup = setup
        self.rank = rank
        self._trace: TraceFile | None = None
        self._codec = ExtentCodec(setup.layout, setup.namespace.digest)
        self._n_host_slots = setup.n_host_slots
        self._arena: HostArena | None = None
        self._store: TierStore | None = None
        self._poller = _PeerPoller(None, 0)
        self._engine: TransferEngine | None = None
        self._movers: Movers | None = None
        self._layered: LayeredWork | None = None
        self._gathers: LayeredGathers | None = None
        self._gpu: torch.device | None = None
        self._loads: dict[int, _Load] = {}  # by transfer
        self._pages: dict[int, tuple[PageRun, ...]] = {}  # by transfer
        self._results: dict[int, list[TransferResult]] = {}
        self._moved = StoreNews()
        self._told: Capacity | None = None
        self._is_idle = False
        self._timed = 0
        self._has_saved = False  # `before_forward` was called in this step
        self._owed: tuple[Transfer, ...] = ()  # to be started after the forward

    def register(self, tensors: Sequence[torch.Tensor], kv_format: KvFormat | None = None) -> None:
        """Take the engine's KV tensors, in layer order; open the disk tier, and make the host arena.

        Their format is told from their shapes where it is not declared. When this raises, nothing stays open or pinned.
        """
        setup, layout = self.setup, self.setup.layout
        paged = PagedKV(tensors, layout, setup.page_tokens, kv_format)
        driver = make_driver(paged.device)
        n_bounce = N_BOUNCE if setup.has_disk else 0
        with ExitStack() as undo:
            store = open_disk(setup, self.rank, self._codec) if setup.has_disk else None
            if store is not None:
                undo.callback(store.close)
                tell_distance(volume_of(setup.config.tiers.disk), self.rank, driver)
            poller = _PeerPoller(store, setup.config.tiers.disk.poll_s)
            arena = make_arena(paged, self._n_host_slots + n_bounce, driver)
            undo.callback(arena.close)
            if store is not None:
                store.attach(arena.view)
                undo.callback(store.detach)
            device = make_device(setup, paged, arena, driver)
            movers = Movers(arena, self._codec, device, store, n_bounce)
            engine = TransferEngine(
                movers, load_timeout_s=setup.config.runtime.load_timeout_s, max_queued_stores=4 * setup.max_writes
            )
            undo.callback(engine.close)
            layered = None
            if setup.config.runtime.onboard != "async":
                may_fail = not setup.is_async_scheduled
                layered = LayeredWork(movers.parts, engine, movers.mark, setup.config.runtime, may_fail=may_fail)
                undo.callback(layered.close)
            self._trace = open_rank_trace(setup.config.runtime.trace_file, self.rank, setup.engine_index)
            undo.pop_all()
        self._gpu = paged.device if driver is not None else None
        self._store, self._poller, self._arena, self._movers, self._engine = store, poller, arena, movers, engine
        self._layered = layered
        if setup.config.runtime.save == "layers":
            self._gathers = LayeredGathers(device, layout)
        logger.info(
            "tenuto: host tier: %d blocks of %d tokens (%d in all), %.1f MiB each",
            self._n_host_slots, layout.block_tokens, self._n_host_slots * layout.block_tokens,
            layout.extent_bytes / 2**20,
        )  # fmt: skip

    def handshake(self) -> Handshake:
        """What the leader must know before the first step."""
        shake = Handshake(self.rank, self.setup.layout.extent_bytes, self._codec.namespace)
        store = self._store
        if store is None:
            return shake
        return Handshake(
            shake.rank, shake.extent_bytes, shake.namespace, store.capacity(), store.recovered,
            self._poller.start(),
        )  # fmt: skip

    def before_forward(self, plan: StepPlan) -> None:
        """Save what this step may overwrite: nothing that the engine queues afterwards overtakes these copies."""
        self._has_saved = True
        engine = self._running_engine()
        if plan.before_forward:
            engine.submit(plan.before_forward)
        engine.settle()
        if self._gathers is not None:
            self._gathers.begin(plan.after_forward)

    def begin_step(self, plan: StepPlan) -> None:
        """Start what does not depend on this step's computing."""
        engine = self._running_engine()
        self._is_idle = plan.is_idle
        self._timed = plan.timed
        self._never_came(self._owed)
        self._owed = plan.after_forward
        if not self._has_saved:
            self._never_came(plan.before_forward)
            engine.settle()
        self._has_saved = False
        for reset in plan.resets:
            self._reset(reset)
        for request_id, awaited in plan.loads:
            load = _Load(request_id, set(awaited))
            self._loads.update(dict.fromkeys(awaited, load))
        self._pages.update((t.id, t.pages) for t in plan.now if t.id in self._loads)
        if plan.now:
            engine.submit(plan.now)
        if plan.layered:
            self._needed_layers().begin(plan.layered)

    def load_layer(self, layer: int) -> None:
        """What the engine queues from now on finds this layer of this step's loads in its pages."""
        if self._layered is not None:
            self._layered.load_layer(layer)

    def load_layers(self) -> None:
        """All of them, for an engine that does not ask for each."""
        for layer in range(self.setup.layout.n_layers):
            self.load_layer(layer)

    def store_layer(self, layer: int) -> None:
        """This layer is queued for the whole step, and those before it: what it fills may be copied."""
        if self._gathers is not None:
            self._gathers.store_layer(layer)

    def end_forward(self, plan: StepPlan) -> None:
        """Start what reads this step's results. The engine may go on: what it queues next waits in `before_forward`."""
        self._owed = ()
        after = plan.after_forward
        queued, copying = ({}, LANDED) if self._gathers is None else self._gathers.end()
        if plan.layered:
            after = self._needed_layers().end(after, copying)
        if after:
            self._running_engine().submit(after, queued)

    def poll(self) -> LoadNews:
        """What has ended since the last call."""
        news = LoadNews()
        if self._store is not None:  # before the results: a block is told as written, and then as moved
            self._moved.add(self._store.take_news())
        results = self._running_engine().poll(_IDLE_WAIT_S if self._is_idle else 0.0)
        if self._layered is not None:
            news.failed_pages |= self._layered.take_failed_pages()
            results = [*self._layered.poll(), *results]
        for result in results:
            self._results.setdefault(result.transfer_id, []).append(result)
            load = self._loads.pop(result.transfer_id, None)
            if load is None:
                continue
            runs = self._pages.pop(result.transfer_id)
            for index in range(len(runs)) if load.is_stale else result.failed:
                news.failed_pages.update(runs[index].pages[runs[index].first :])
            load.awaited.discard(result.transfer_id)
            if not load.awaited:
                news.finished.add(load.request_id)
        return news

    def report(self) -> WorkerReport | None:
        """What the leader must hear after this step; None when there is nothing new."""
        results, self._results = self._results, {}
        peers = self._poller.take()
        disk = self._store.capacity() if self._store is not None else None
        timed, self._timed = self._timed, 0
        waited_s = self._layered.take_waited_s() if self._layered is not None else 0.0
        moved, self._moved = self._moved, StoreNews()
        if not (results or peers or timed or moved) and disk == self._told:
            return None
        self._told = disk
        disks = {} if disk is None else {self.rank: disk}
        volumes = {self.rank: moved} if moved else {}
        return WorkerReport(results, disks, {self.rank: peers} if peers else {}, volumes, timed, waited_s)

    def shutdown(self) -> None:
        """Let pending writes end, up to the deadline, and close; behind what goes on after it, on a thread of its own.

        Does nothing before `register`, and when called again.
        """
        if self._engine is None:
            return
        engine, self._engine = self._engine, None
        if self._gathers is not None:
            self._gathers.drop()
        timeout_s = self.setup.config.runtime.shutdown_timeout_s
        ends = [engine.close] if self._layered is None else [self._layered.close, engine.close]
        with ExitStack() as closing:  # also after a Ctrl-C while it waits
            if self._trace is not None:
                closing.callback(self._trace.close)
            closing.callback(_Closing(ends, self._store, self._arena, self._gpu).run, _JOIN_S)
            closing.callback(self._poller.close)
            self._store, self._arena, self._movers, self._layered = None, None, None, None
            if not engine.drain(timeout_s):
                logger.warning(
                    "tenuto: %d transfers had not ended after %.0f s at shutdown: their blocks are not kept",
                    engine.n_pending(), timeout_s,
                )  # fmt: skip

    def _needed_layers(self) -> LayeredWork:
        if self._layered is None:
            raise RuntimeError('a plan has layered loads, and this worker was set to onboard = "async"')
        return self._layered

    def _running_engine(self) -> TransferEngine:
        if self._engine is None:
            raise RuntimeError("the worker has no KV tensors yet, or was shut down")
        return self._engine

    def _never_came(self, transfers: Sequence[Transfer]) -> None:
        """The engine did not call us at the moment these were for: nobody may wait for them."""
        for transfer in transfers:
            self._results[transfer.id] = [TransferResult.cancelled(transfer)]

    def _reset(self, reset: Reset) -> None:
        for load in self._loads.values():
            load.is_stale = True
        self._codec = ExtentCodec(self.setup.layout, reset.namespace)
        if self._movers is not None:
            self._movers.codec = self._codec
        if self._store is not None:
            self._store.reset(reset.namespace, reset.epoch)


class _Closing:
    """Closes store and arena when no lane may touch them any more."""

    def __init__(
        self,
        ends: Sequence[Callable[[float], bool]],
        store: TierStore | None,
        arena: HostArena | None,
        gpu: torch.device | None,
    ) -> None:
        """`ends`: each ends some lanes, within so many seconds; whether they have ended."""
        self._ends, self._store, self._arena, self._gpu = ends, store, arena, gpu

    def run(self, timeout_s: float) -> None:
        """At once when the lanes end within `timeout_s`, else when they do."""
        if self._have_ended(timeout_s):
            self._close()
            return
        with suppress(RuntimeError):  # an interpreter that ends gives no thread, and takes all of it along, as a daemon
            threading.Thread(target=self._close_later, name="tenuto-close", daemon=True).start()

    def _close_later(self) -> None:
        while not self._have_ended(_JOIN_S):
            pass
        try:
            if self._gpu is not None:
                torch.cuda.synchronize(self._gpu)  # gives this thread the context that unpinning needs
        except RuntimeError as error:  # a GPU that has failed copies nothing any more
            logger.warning("tenuto: %s: %s", self._gpu, str(error).splitlines()[0])
        self._close()

    def _have_ended(self, timeout_s: float) -> bool:
        have_ended = [end(timeout_s) for end in self._ends]
        return all(have_ended)

    def _close(self) -> None:
        with ExitStack() as closing:
            if self._arena is not None:
                closing.callback(self._arena.close)
            if self._store is not None:
                closing.callback(self._store.close)


class _PeerPoller:
    """Looks every `poll_s` for blocks of other engines; off without a store."""

    def __init__(self, store: TierStore | None, poll_s: float) -> None:
        self._store = store
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._news: dict[str, dict[int, BlockKey]] = {}  # the last of each slot, oldest first
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="tenuto-peers", daemon=True)

    def start(self) -> dict[str, Entries]:
        """What is there now; polling begins."""
        if self._store is None:
            return {}
        found = self._store.peers.news()
        if self._poll_s > 0:
            self._thread.start()
        return found

    def take(self) -> dict[str, Entries]:
        """What is new since the last call."""
        if not self._news:
            return {}
        with self._lock:
            news, self._news = self._news, {}
        return {volume: list(blocks.items()) for volume, blocks in news.items()}

    def close(self) -> None:
        """End polling."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _loop(self) -> None:
        assert self._store is not None
        while not self._closed.wait(self._poll_s):
            found = self._store.peers.news()
            with self._lock:
                for volume, entries in found.items():
                    blocks = self._news.setdefault(volume, {})
                    for slot, key in entries:
                        blocks.pop(slot, None)
                        blocks[slot] = key


def open_disk(setup: Setup, rank: int, codec: ExtentCodec) -> TierStore | None:
    """See `open_tier`."""
    worker = worker_name(setup.config.events, setup.engine_id)
    me = Identity(setup.namespace, worker, setup.engine_index, rank, setup.split)
    return open_tier(setup.config.tiers.disk, codec, setup.engine_id, me)
