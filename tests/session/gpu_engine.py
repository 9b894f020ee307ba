"""A made-up engine on a made-up GPU, with the real leader, worker, transfers and lanes; every byte is compared.

What a token's rows hold depends on all tokens before it, as keys and values do. Pages are given to others the moment
their request ends, and the GPU is up to two steps behind.
"""

import zlib
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import numpy as np

from tenuto.config import load_config
from tenuto.connectors.session import Leader, Progress, Setup, Worker, setup
from tenuto.connectors.session import worker as worker_module
from tenuto.testing.clock import FakeClock
from tenuto.testing.kvshapes import payload_of
from tenuto.testing.memory_store import MemoryStore
from tenuto.testing.requests import FakeRequest
from tenuto.tiers.store import StoreNews
from tenuto.tokens import HashChain, Namespace
from tenuto.transfers import engine as engine_module
from tenuto.transfers.movers import Movers
from tests.transfers.fake_cuda import Gpu
from tests.transfers.lane_life import N_PAGES, PAGE_TOKENS, PER_BLOCK, Memory, expect

BLOCK = PAGE_TOKENS * PER_BLOCK
MOST_STEPS = 400


class SlowStore(MemoryStore):
    """A disk whose reads and writes leave others their turns."""

    def __init__(self, codec, n_slots, pause):
        super().__init__(codec, n_slots)
        self._pause = pause
        self.recovered, self.peers = [], SimpleNamespace(news=dict)
        self.attach, self.detach, self.take_news = lambda arena: None, lambda: None, StoreNews

    def write(self, items):
        return self._slowly(super().write, items)

    def read(self, items, volume=""):
        return self._slowly(partial(super().read, volume=volume), items)

    def close(self):
        """Nothing is open."""

    def _slowly(self, do, items):
        failures = []
        for index, item in enumerate(items):
            self._pause()
            failures += [type(failure)(index, failure.cause, failure.message) for failure in do([item])]
        return failures


@dataclass
class Seq:
    """A request in the scheduler; `loads_to`: tokens it will have when its load has ended."""

    view: FakeRequest
    pages: list[int] = field(default_factory=list)
    n_computed: int = 0
    n_told: int = 0  # pages that the leader has heard of
    loads_to: int = 0
    n_local: int = 0  # pages of the engine's own prefix hit that were not written yet
    failed_pages: set = field(default_factory=set)
    is_running: bool = False


class GpuEngine:
    """Requests of few prompts, in random steps. `fault_rate`: of calls of the driver. `save`: the setting.

    `parts_chance`: of a forward that computes a layer in two parts, with a hook behind each.
    """

    def __init__(self, monkeypatch, lanes, seed, fault_rate=0.0, save="forward", parts_chance=0.0):
        self.gpu = gpu = Gpu(seed)
        self.rng = rng = gpu.rng
        self.memory = memory = Memory(rng)
        layout = memory.layout
        n_host, n_disk, timeout_s = rng.choice([4, 10, 20]), rng.choice([0, 40]), rng.choice([0.05, 30.0])
        config = load_config({
            "tiers": {
                "host": {"capacity": (n_host + setup.N_BOUNCE * (n_disk > 0)) * layout.extent_bytes},
                "disk": {"path": "/unused", "poll_s": 0} if n_disk else {},
            },
            "runtime": {"load_timeout_s": timeout_s, "save": save},
        })  # fmt: skip
        namespace = Namespace("m", "c", "w", "u8", "u8", "none", BLOCK, 2, layout.n_heads, layout.k_dim, layout.v_dim)
        lanes.put_on(gpu, rng.choice([1, 1 << 40]), turn_bytes=rng.choice([1, 1 << 20]))
        window = rng.randint(1, 3) * layout.payload_bytes
        ring = lanes.cuda.RingSizes(2 * window, 2 * window, window, 2, 1)
        monkeypatch.setattr(engine_module, "threading", gpu.threads)
        monkeypatch.setattr(Movers, "land", self._watched(Movers.land))
        for name, fake in {
            "make_device": lambda _, kv, arena, __: lanes.cuda.CudaDevice(kv, arena, ring, gpu),
            "open_disk": lambda _, __, codec: SlowStore(codec, n_disk, gpu.threads.pause),
            "TransferEngine": partial(engine_module.TransferEngine, clock=lambda: gpu.clock_s),
        }.items():
            monkeypatch.setattr(worker_module, name, fake)
        made = Setup(config, namespace, layout, PAGE_TOKENS, "e")
        self.leader, self.worker = Leader(made, FakeClock()), Worker(made)
        self.worker.register(memory.tensors, memory.kv_format)
        self.parts_chance = parts_chance
        self.gathers = self.worker._gathers
        if self.gathers is not None:
            self.gathers.least_bytes = rng.choice([1, 3 * layout.segment_bytes])
        self.leader.connect({0: self.worker.handshake()})
        gpu.fault_rate = fault_rate
        self.free = list(range(N_PAGES))
        self.seqs = {}
        self.n_requests = self.n_loaded_pages = 0
        self.preempted, self.steps, self.tokens = [], [], {}
        self.prompts = [[rng.randrange(50) for _ in range(6 * BLOCK)] for _ in range(3)]

    def live(self, n_steps):
        """So many steps with new requests, and then until all is done."""
        try:
            for _ in range(n_steps):
                if len(self.seqs) < 5 and self.rng.random() < 0.5:
                    self._add()
                self._step()
            for _ in range(MOST_STEPS):
                if not (self.seqs or self.leader.has_pending):
                    break
                self._step()
                for _ in range(10):
                    self.gpu.step()
            assert not self.seqs, "requests without end"
            assert not self.leader.has_pending, "steps without end"
            self.worker.shutdown()
            self.gpu.drain()
        finally:
            self.gpu.threads.close()

    def _watched(self, land):
        """`Movers.land`, and what has landed is compared with what each block must hold."""

        def landed(movers, transfer, indices, landing):
            land(movers, transfer, indices, landing)
            for index in indices:
                wanted = self._payload(transfer.keys[index].hash)
                found = np.frombuffer(movers._arena.slot(transfer.targets[index]), np.uint8)
                expect(found[self.memory.layout.header_bytes :], wanted, f"stored: {transfer.pages[index]}")

        return landed

    def _payload(self, block_hash):
        """What a block of these tokens must hold, by docs/format.md."""
        tokens = self.tokens[block_hash]
        rows = [
            self._page(tokens, at) for at in range(len(tokens) // PAGE_TOKENS - PER_BLOCK, len(tokens) // PAGE_TOKENS)
        ]
        return payload_of(np.stack(rows, 1), list(range(PER_BLOCK)), self.memory.layout.segment_bytes, 0)

    def _learn(self, view):
        """The tokens up to the end of each of its blocks, by the block's hash."""
        chain = HashChain(self.leader._namespace.digest, BLOCK)
        chain.append(view.tokens)
        for index, block_hash in enumerate(chain.hashes):
            self.tokens[block_hash] = view.tokens[: (index + 1) * BLOCK]

    def _add(self):
        prompt = self.rng.choice(self.prompts)[: self.rng.randint(1, 6 * BLOCK)]
        self.n_requests += 1
        name = f"r{self.n_requests}"
        self.seqs[name] = Seq(FakeRequest(name, [*prompt, *(self.rng.randrange(50, 99) for _ in range(3))]))

    def _step(self):
        """What vLLM does in one: reports in, requests out and in, a plan, and its moments on the worker."""
        self._hear()
        self._end_some()
        for seq in [seq for seq in self.seqs.values() if not seq.is_running and not seq.loads_to]:
            self._admit(seq)
        computed = [self._go_on(seq) for seq in self.seqs.values() if seq.is_running]
        plan = self.leader.plan_step(
            [(seq.view, progress) for seq, progress, _ in computed if progress], is_idle=not computed,
            preempted=self.preempted,
        )  # fmt: skip
        self.preempted = []
        self.worker.before_forward(plan)
        self.worker.begin_step(plan)
        self._write_local()
        self._compute([(seq, start, seq.n_computed) for seq, _, start in computed])
        if computed:
            self.worker.end_forward(plan)
        self.leader.check()
        self.steps.append(self.gpu.compute.record_event())
        if len(self.steps) > 2:
            self.steps.pop(0).synchronize()  # an engine reads what it computed, a step or two later
        self.gpu.threads.pause()

    def _hear(self):
        news = self.worker.poll()
        for seq in self.seqs.values():
            if seq.loads_to:
                seq.failed_pages |= news.failed_pages.intersection(seq.pages)
        for name in news.finished:
            seq = self.seqs[name]
            bad = [at for at in range(seq.loads_to // PAGE_TOKENS) if seq.pages[at] in seq.failed_pages]
            n_pages = bad[0] if bad else seq.loads_to // PAGE_TOKENS
            for at in range(seq.n_computed // PAGE_TOKENS, n_pages):
                for what in self._checks(seq, at, f"{name} was loaded"):
                    what()
                self.n_loaded_pages += 1
            seq.n_computed, seq.loads_to, seq.is_running, seq.failed_pages = n_pages * PAGE_TOKENS, 0, True, set()
            self.leader.admit(name, seq.pages, 0)
        report = self.worker.report()
        if report is not None:
            self.leader.receive(report)

    def _end_some(self):
        for name, seq in list(self.seqs.items()):
            if seq.is_running and self.rng.random() < 0.15:
                if self.rng.random() < 0.3:
                    self._preempt(name, seq)
                elif seq.n_computed >= len(seq.view.tokens):
                    self.free += self.seqs.pop(name).pages
                    self.leader.finish(name)
        self.rng.shuffle(self.free)

    def _preempt(self, name, seq):
        self.free += seq.pages
        seq.pages, seq.n_computed, seq.n_told, seq.is_running = [], 0, 0, False
        self.preempted.append(name)

    def _admit(self, seq):
        """Beyond what the engine's own prefix cache has, which the next forward puts there."""
        n_tokens = len(seq.view.tokens)
        n_local = min(self.rng.choice([0, 0, 1, 3]) * PAGE_TOKENS, (n_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS)
        n_external = self.leader.lookup(seq.view, n_local)
        n_pages = -(-n_tokens // PAGE_TOKENS) + self.rng.randint(1, 3 * PER_BLOCK)
        if n_external is None or n_pages > len(self.free):
            return
        seq.pages = [self.free.pop() for _ in range(n_pages)]
        self.leader.admit(seq.view.request_id, seq.pages[: (n_local + n_external) // PAGE_TOKENS], n_external)
        seq.n_local, seq.n_computed = n_local // PAGE_TOKENS, n_local
        seq.loads_to = n_local + n_external if n_external else 0
        seq.is_running = not n_external

    def _go_on(self, seq):
        start, view = seq.n_computed, seq.view
        if start >= len(view.tokens):
            n_new = min(self.rng.randint(1, 6), len(seq.pages) * PAGE_TOKENS - start)
            if not n_new:
                return seq, None, start  # as long as it may get
            view.tokens += [self.rng.randrange(99) for _ in range(n_new)]
        seq.n_computed = min(start + self.rng.randint(1, 3 * BLOCK), len(view.tokens))
        self._learn(view)
        is_whole = seq.n_told == 0
        new, seq.n_told = seq.pages[seq.n_told :], len(seq.pages)
        return seq, Progress(view.request_id, seq.pages if is_whole else new, is_whole, seq.n_computed), start

    def _write_local(self):
        for seq in self.seqs.values():
            self.gpu.compute.put(what for at in range(seq.n_local) for what in self._writes(seq, at))
            seq.n_local = 0

    def _compute(self, parts):
        """The forward: each request reads all whole pages before, and writes what it fills, layer by layer.

        Hooks follow a layer's last writes; perhaps they don't come.
        """
        put = self.gpu.compute.put
        for seq, start, _ in parts:
            name = seq.view.request_id
            put(what for at in range(start // PAGE_TOKENS) for what in self._checks(seq, at, f"{name} computes"))
        writes = [
            what for seq, start, stop in parts for at in range(start // PAGE_TOKENS, stop // PAGE_TOKENS)
            for what in self._writes(seq, at)
        ]  # fmt: skip
        has_hooks = self.rng.random() < 0.9
        is_in_parts = self.parts_chance and self.rng.random() < self.parts_chance
        for layer in range(self.memory.layout.n_layers):
            mine = [what for what in writes if what.args[1] == layer]
            for part in (mine[::2], mine[1::2]) if is_in_parts else (mine,):
                put(part)
                if has_hooks and parts:
                    self.worker.store_layer(layer)
        if is_in_parts and self.gathers is not None:
            self.gathers._is_off = False  # it is to happen again

    def _writes(self, seq, at):
        return [partial(self.memory.write, part, layer, rows) for part, layer, rows in self._rows(seq, at)]

    def _checks(self, seq, at, what):
        return [partial(self.memory.check, part, layer, rows, what) for part, layer, rows in self._rows(seq, at)]

    def _rows(self, seq, at):
        """(kernel page, layer, content) of one of the request's pages."""
        rows, step = self._page(seq.view.tokens, at), self.memory.kv.kernel_page_tokens
        for number, part in enumerate(self.memory.parts(seq.pages[at])):
            for layer in range(len(rows)):
                yield part, layer, rows[:, :, :, number * step : (number + 1) * step]

    def _page(self, tokens, at):
        """``(layers, heads, planes, tokens, row bytes)`` of page `at` of these tokens; every row its own."""
        layout = self.memory.layout
        page = np.empty((layout.n_layers, layout.n_heads, layout.n_planes, PAGE_TOKENS, 2), np.uint32)
        page[..., 0] = [zlib.crc32(bytes(tokens[: at * PAGE_TOKENS + n + 1])) for n in range(PAGE_TOKENS)]
        page[..., 1] = np.arange(page[..., 1].size).reshape(page.shape[:-1])
        return page.view(np.uint8)
