"""A life of a device's lanes beside an engine that computes, with every byte that anybody reads compared."""

from functools import partial

import numpy as np

from tenuto.memory.arena import HostArena
from tenuto.memory.driver import DriverError
from tenuto.memory.layout import Dtype
from tenuto.memory.paged import PagedKV
from tenuto.memory.pages import PageRun
from tenuto.testing.kvshapes import ARRANGEMENTS, MLA_ARRANGEMENTS, Shape, payload_of, random_truth
from tests.transfers.fake_cuda import Gpu, WrongBytes, rows_of

PAGE_TOKENS, PER_BLOCK = 4, 4
N_PAGES, N_SLOTS = 60, 24
ROW_BYTES = 8
BOTH = ("vllm-hnd", "vllm-nhd-view", "BLHNC", "NL_X_TWO_NB_BS_NH_HS", "NB_NL_TWO_NH_BS_HS")
LATENT = ("NL_X_NB_BS_HS", "vllm-mla-block-major")


class Memory:
    """The engine's, and a mirror: what it holds when all that is queued has run."""

    def __init__(self, rng):
        is_mla = rng.random() < 0.2
        shape = Shape(
            n_layers=2, n_heads=1 if is_mla else 2, k_dim=ROW_BYTES, v_dim=0 if is_mla else ROW_BYTES,
            page_tokens=PAGE_TOKENS, block_tokens=PER_BLOCK * PAGE_TOKENS, dtype=Dtype.BYTES,
            kernel_page_tokens=rng.choice([0, 0, 2]),
        )  # fmt: skip
        name = rng.choice(LATENT if is_mla else BOTH)
        arrangement = (ARRANGEMENTS | MLA_ARRANGEMENTS)[name]
        self.mirror = random_truth(shape, N_PAGES)  # (layers, kernel pages, heads, planes, tokens, row bytes)
        self.tensors = arrangement.tensors(self.mirror.copy(), shape.dtype)
        self.layout, self.kv_format = shape.layout, arrangement.kv_format
        self.kv = PagedKV(self.tensors, shape.layout, PAGE_TOKENS, arrangement.kv_format)
        self.rows = rows_of(self.kv)
        self._generation = 0

    def parts(self, page):
        """The kernel's pages of one of the manager's."""
        return range(page * self.kv.pages_ratio, (page + 1) * self.kv.pages_ratio)

    def fresh(self):
        """A kernel page that never was, every row its own: its generation, and its number in the page."""
        self._generation += 1
        shape = (*self.mirror[:, 0].shape[:-1], 2)
        page = np.empty(shape, np.uint32)
        page[..., 0] = self._generation
        page[..., 1] = np.arange(page[..., 1].size).reshape(shape[:-1])
        return page.view(np.uint8)

    def write(self, part, layer, content):
        for plane, rows in enumerate(self.rows[layer]):
            rows[part] = content[layer, :, plane]

    def check(self, part, layer, content, what):
        for plane, rows in enumerate(self.rows[layer]):
            expect(rows[part], content[layer, :, plane], f"{what}: page {part}, layer {layer}, plane {plane}")

    def payload(self, run):
        """Of a block in these pages, by docs/format.md."""
        parts = [part for page in run.pages for part in self.parts(page)]
        return payload_of(self.mirror, parts, self.layout.segment_bytes, 0)

    def put(self, run, payload):
        """Into the mirror: the block's pages from `first` on."""
        layout = self.layout
        segments = payload.reshape(layout.n_layers, -1)[:, : layout.n_heads * layout.run_bytes]
        runs = segments.reshape(layout.n_layers, layout.n_heads, layout.n_planes, layout.block_tokens, -1)
        parts = [part for page in run.pages for part in self.parts(page)]
        step = self.kv.kernel_page_tokens
        for number, part in enumerate(parts):
            if number >= run.first * self.kv.pages_ratio:
                self.mirror[:, part] = runs[:, :, :, number * step : (number + 1) * step]


def expect(found, wanted, what):
    if not np.array_equal(found, wanted):
        at = tuple(np.argwhere(found != wanted)[0])
        raise WrongBytes(f"{what}: {int((found != wanted).sum())} bytes, the first at {at}")


class Host:
    """Slots: free, on their way, or with a payload that nobody writes."""

    def __init__(self, layout):
        self.arena = HostArena(N_SLOTS, layout.extent_bytes)
        self.header_bytes = layout.header_bytes
        self.free, self.held, self.leased = set(range(N_SLOTS)), {}, []

    def fill(self, slot, payload):
        """As from disk."""
        np.frombuffer(self.arena.slot(slot), np.uint8)[self.header_bytes :] = payload
        self.free.remove(slot)
        self.held[slot] = payload

    def check(self, slot, payload, what):
        expect(np.frombuffer(self.arena.slot(slot), np.uint8)[self.header_bytes :], payload, f"{what}: slot {slot}")


class Life:
    """Three lanes, as a worker has them, and an engine's thread that goes through steps."""

    def __init__(self, lanes, seed, fault_rate=0.0):
        self.gpu = gpu = Gpu(seed)
        self.rng = rng = gpu.rng
        self.memory = memory = Memory(rng)
        self.host = Host(memory.layout)
        gpu.compute.put([int] * rng.choice([0, 60]))  # the engine is at work when the lanes are made
        turn_bytes = rng.choice([1, 2, 1 << 20]) * memory.layout.payload_bytes
        lanes.put_on(gpu, rng.choice([1, 1 << 40]), turn_bytes)  # without a ring, or with two
        per_window = [rng.randint(1, 4) * memory.layout.payload_bytes for _ in range(2)]
        ring = lanes.cuda.RingSizes(2 * per_window[0], rng.randint(2, 3) * per_window[0], per_window[0], 2, 1)
        self.device = lanes.cuda.CudaDevice(memory.kv, self.host.arena, ring, gpu)
        gpu.fault_rate = fault_rate
        self.read_disk(rng.randrange(N_SLOTS // 2))
        self.busy = set()  # pages that are being loaded
        self.lost = set()  # pages that hold nobody knows what
        self.lanes = {name: [] for name in ("copy", "direct", "stage")}
        for jobs in self.lanes.values():
            gpu.threads.run(partial(self._work, jobs))

    def live(self, n_steps):
        """Until all has ended; whatever goes wrong, no thread is left."""
        try:
            self.load(self.rng.choice([0, 1]))
            self.gpu.threads.pause()
            for _ in range(n_steps):
                self.step()
            self.gpu.threads.pause(lambda: not any(self.lanes.values()))
            self.gpu.drain()
            for slot, payload in self.host.held.items():
                self.host.check(slot, payload, "at the end")
            for page in set(range(N_PAGES)) - self.lost:
                self._read(page, "at the end")
        finally:
            self.gpu.threads.close()

    def step(self):
        """As a worker's: what is in danger is saved, loads begin, the forward runs, and its pages are saved."""
        may = self.rng.random
        if may() < 0.3:
            self.store()
        self.device.settle()
        self.load(may() * 0.6)
        self.forward()
        if may() < 0.7:
            self.store()
        self.load(may() * 0.3)  # a mark settles, too
        self._evict()
        self.read_disk(self.rng.choice([0, 0, 0, 3]))
        self.gpu.threads.pause()

    def forward(self):
        """It reads some pages, and writes others, or the same."""
        free = sorted(set(range(N_PAGES)) - self.busy)
        known = [page for page in free if page not in self.lost]
        memory, put = self.memory, self.gpu.compute.put
        put(
            partial(memory.check, part, layer, memory.mirror[:, part].copy(), "the forward reads")
            for page in self.rng.sample(known, min(4, len(known)))
            for part in memory.parts(page) for layer in range(memory.layout.n_layers)
        )  # fmt: skip
        written = set(self.rng.sample(free, min(len(free), self.rng.randint(1, 16)))) | (self.lost - self.busy)
        for page in written:
            for part in memory.parts(page):
                memory.mirror[:, part] = memory.fresh()
        self.lost -= written
        put(
            partial(memory.write, part, layer, memory.mirror[:, part].copy())
            for page in written for part in memory.parts(page) for layer in range(memory.layout.n_layers)
        )  # fmt: skip

    def read_disk(self, n_blocks):
        """Blocks that lay somewhere else come into free slots, without the GPU."""
        for slot in self.rng.sample(sorted(self.host.free), min(n_blocks, len(self.host.free))):
            pages = self.rng.sample(range(N_PAGES), PER_BLOCK)
            self.host.fill(slot, self.memory.payload(PageRun(tuple(pages))))

    def store(self):
        slots = self.rng.sample(sorted(self.host.free), min(len(self.host.free), self.rng.randint(1, 10)))
        runs = [PageRun(run) for run in self._blocks(len(slots), self.busy | self.lost)]
        slots = slots[: len(runs)]
        payloads = [self.memory.payload(run) for run in runs]
        landings = []
        try:
            landings.extend(self.device.gather(runs, slots, layers) for layers in self._layers())
        except DriverError:
            for landing in landings:
                landing.wait()
            self.read_disk(2)  # into the same slots, perhaps
            return
        self.host.free -= set(slots)
        stored = dict(zip(slots, payloads, strict=True))
        if all(landing.has_ended for landing in landings):
            self._keep(stored)
        else:
            self.lanes["stage"].append(partial(self._land, landings, stored))

    def _layers(self):
        """All in one, or each by itself."""
        return self.rng.choice([[None], [(layer, layer + 1) for layer in range(self.memory.layout.n_layers)]])

    def _land(self, landings, stored):
        for landing in landings:
            landing.wait()
        self._keep(stored)

    def _keep(self, stored):
        for slot, payload in stored.items():
            self.host.check(slot, payload, "stored")
        self.host.held |= stored

    def load(self, chance):
        """Perhaps, on one of two lanes."""
        if self.rng.random() > chance:
            return
        slots = self.rng.sample(sorted(self.host.held), min(len(self.host.held), self.rng.randint(1, 10)))
        runs = [
            PageRun(run, self.rng.choice([0, 0, self.rng.randrange(PER_BLOCK)]))
            for run in self._blocks(len(slots), self.busy)
        ]
        slots = slots[: len(runs)]
        pages = {page for run in runs for page in run.pages[run.first :]}
        self.busy |= pages
        self.host.leased += slots
        if self.rng.random() < 0.3:
            self._load_now(runs, slots, pages)
            return
        job = partial(self._load, runs, slots, pages, self.device.mark())
        self.lanes[self.rng.choice(["copy", "direct"])].append(job)

    def _load_now(self, runs, slots, pages):
        """Layer by layer under the forward: who computes on a layer is fenced by its copies, and waits no longer."""
        mark = self.device.mark()
        landings = []
        try:
            for layer in range(self.memory.layout.n_layers):
                landing = self.device.scatter(runs, slots, mark, (layer, layer + 1))
                landings.append(landing)
                landing.fence()
        except DriverError:
            self._give_up(landings, pages)
        else:
            self._take_in(runs, slots, pages)
        self.busy -= pages
        job = partial(self._land_load, landings, slots)
        self.lanes["copy"].append(job)

    def _give_up(self, landings, pages):
        """The driver has failed: what was queued before is still on its way."""
        for landing in landings:
            landing.wait()
        self.lost |= pages

    def _take_in(self, runs, slots, pages):
        """What was loaded, into the mirror."""
        self.lost -= pages
        for run, slot in zip(runs, slots, strict=True):
            self.memory.put(run, self.host.held[slot])

    def _land_load(self, landings, slots):
        for landing in landings:
            landing.wait()
        for slot in slots:
            self.host.leased.remove(slot)

    def _load(self, runs, slots, pages, mark):
        landings = []
        try:
            landings.extend(self.device.scatter(runs, slots, mark, layers) for layers in self._layers())
            for landing in landings:
                landing.wait()
        except DriverError:
            self._give_up(landings, pages)
        else:
            self._take_in(runs, slots, pages)
            for page in pages:
                self._read(page, "loaded")
        self.busy -= pages
        for slot in slots:
            self.host.leased.remove(slot)

    def _evict(self):
        """Slots that nobody loads from may be written again."""
        for slot in [slot for slot in self.host.held if slot not in self.host.leased and self.rng.random() < 0.2]:
            self.host.check(slot, self.host.held.pop(slot), "evicted")
            self.host.free.add(slot)

    def _read(self, page, what):
        for part in self.memory.parts(page):
            for layer in range(self.memory.layout.n_layers):
                self.memory.check(part, layer, self.memory.mirror[:, part], what)

    def _blocks(self, n, without):
        pages = sorted(set(range(N_PAGES)) - without)
        self.rng.shuffle(pages)
        return [tuple(pages[at : at + PER_BLOCK]) for at in range(0, len(pages) - PER_BLOCK + 1, PER_BLOCK)][:n]

    def _work(self, jobs):
        while True:
            self.gpu.threads.pause(lambda: jobs)
            jobs[0]()
            jobs.pop(0)
