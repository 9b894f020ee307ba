"""Device ↔ host: every KV format through the real lane, against one pinned copy in the same rounds, by medians."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tenuto.cli.bench.interference import measure_interference
from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Figures
from tenuto.errors import ConfigError, InvariantError
from tenuto.memory.driver import CudaDriver
from tenuto.memory.paged import PagedKV
from tenuto.memory.pages import PageRun
from tenuto.memory.pinning import pinned_arena
from tenuto.testing.kvshapes import BENCHED
from tenuto.transfers.lanes.cuda import CudaDevice, RingSizes

GIB = 1 << 30
RING = RingSizes(256 << 20, 384 << 20, 128 << 20, 64, 64)


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """`kv_bytes` of engine memory move at once, and a quarter of it: a prompt of 32k tokens, a step of 8k."""

    kv_bytes: int = 4 * GIB
    n_rounds: int = 9
    ring: RingSizes = RING
    n_products: int = 40
    """Matrix products, or copies of memory, in one sample of interference."""


class Bed:
    """An engine's memory in one format, a pinned arena, and the device between them."""

    def __init__(self, name: str, sizes: DeviceSizes, driver: CudaDriver) -> None:
        self.name = name
        shape, arrangement = BENCHED[name]
        self.layout = layout = shape.layout
        self.n_blocks = max(1, sizes.kv_bytes // layout.payload_bytes)
        self.n_bytes = self.n_blocks * layout.n_layers * layout.n_heads * layout.run_bytes
        per_block = layout.block_tokens // shape.page_tokens
        tensors = arrangement.random_tensors(shape, self.n_blocks * per_block + 1, "cuda", seed=7)
        pages = list(range(1, self.n_blocks * per_block + 1))
        random.Random(4).shuffle(pages)
        self.runs = [PageRun(tuple(pages[at : at + per_block])) for at in range(0, len(pages), per_block)]
        self.slots = random.Random(5).sample(range(self.n_blocks), self.n_blocks)
        self.kv = PagedKV(tensors, layout, shape.page_tokens, arrangement.kv_format)
        self.arena = pinned_arena(self.n_blocks, layout.extent_bytes, driver)
        self.device = CudaDevice(self.kv, self.arena, sizes.ring, driver)

    def store(self, share: int = 1) -> None:
        """Device → host: all of it, or one part in `share`."""
        n = self.n_blocks // share
        self.device.gather(self.runs[:n], self.slots[:n]).wait()

    def load(self, share: int = 1) -> None:
        """Host → device: all of it, or one part in `share`."""
        n = self.n_blocks // share
        self.device.scatter(self.runs[:n], self.slots[:n], self.device.mark()).wait()

    def check(self) -> None:
        """What was stored and wiped comes back, bit for bit. Raises `InvariantError`."""
        views = [view.view(torch.uint8) for layer in self.kv.views for view in layer]  # pages are their second axis
        before = [view.clone() for view in views]
        self.store()
        for view in views:
            view[:, 1:].zero_()
        self.load()
        if not all(torch.equal(one, other) for one, other in zip(before, views, strict=True)):
            raise InvariantError(f"{self.name}: what came back differs from what was stored")

    def close(self) -> None:
        """Give the memory back."""
        torch.cuda.synchronize()
        self.arena.close()


def measure_device(sizes: DeviceSizes, bar: Bar) -> Figures:
    """Rates, ratios to the ceiling, cost of submitting, interference. Raises `ConfigError` without a GPU."""
    if not torch.cuda.is_available():
        raise ConfigError("device: torch finds no CUDA device; run it on a machine with a GPU")
    driver = CudaDriver()
    figures: Figures = {}
    plain = Plain(sizes.kv_bytes)
    for name in bar.over(BENCHED, "formats", len(BENCHED)):
        bed = Bed(name, sizes, driver)
        bed.check()
        figures |= _rates(bed, sizes, plain)
        bed.close()
        del bed
        torch.cuda.empty_cache()
    bed = Bed("packed", sizes, driver)
    figures |= _submit_cost(bed)
    figures |= measure_interference(bed.store, bed.load, sizes.n_products, sizes.n_rounds, bar)
    bed.close()
    return figures


def _timed(move: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    move()
    torch.cuda.synchronize()
    return time.perf_counter() - began


class Plain:
    """One pinned copy: what the wire gives."""

    def __init__(self, n_bytes: int) -> None:
        self._pinned = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
        self._there = torch.empty(n_bytes, dtype=torch.uint8, device="cuda")

    def d2h(self, n_bytes: int) -> None:
        """Device → host."""
        self._pinned[:n_bytes].copy_(self._there[:n_bytes], non_blocking=True)

    def h2d(self, n_bytes: int) -> None:
        """Host → device."""
        self._there[:n_bytes].copy_(self._pinned[:n_bytes], non_blocking=True)


def _rates(bed: Bed, sizes: DeviceSizes, plain: Plain) -> Figures:
    """GB/s both ways, and their ratio to one pinned copy of as many bytes; of all, and of a quarter at once."""
    n, part = bed.n_bytes, bed.n_blocks // 4 * (bed.n_bytes // bed.n_blocks)
    ways: dict[str, tuple[int, Callable[[], None], Callable[[], None]]] = {
        "d2h": (n, bed.store, lambda: plain.d2h(n)),
        "h2d": (n, bed.load, lambda: plain.h2d(n)),
        "d2h_part": (part, lambda: bed.store(4), lambda: plain.d2h(part)),
        "h2d_part": (part, lambda: bed.load(4), lambda: plain.h2d(part)),
    }
    seconds: dict[tuple[str, bool], list[float]] = {}
    for _ in range(sizes.n_rounds + 1):
        for way, (_n, move, ceiling) in ways.items():
            seconds.setdefault((way, False), []).append(_timed(ceiling))
            seconds.setdefault((way, True), []).append(_timed(move))
    figures: Figures = {}
    for way, (n_bytes, *_) in ways.items():
        rate, ceiling = (n_bytes / statistics.median(seconds[way, is_ours][1:]) / 1e9 for is_ours in (True, False))
        direction, _, of_part = way.partition("_")
        name = f"{direction}_{bed.name}" + ("_quarter" if of_part else "")
        figures |= {name: round(rate / ceiling, 4), f"{name}_gb_s": round(rate, 2)}
        figures |= {f"{name}_ceiling_gb_s": round(ceiling, 2)}
    return figures


def _submit_cost(bed: Bed) -> Figures:
    """Milliseconds of the engine's thread per GiB: all that `gather` does before it returns."""
    costs: list[float] = []
    for _ in range(9):
        torch.cuda.synchronize()
        began = time.perf_counter()
        landing = bed.device.gather(bed.runs, bed.slots)
        costs.append(time.perf_counter() - began)
        landing.wait()
    return {"submit_ms_per_gib": round(statistics.median(costs) * 1e3 / (bed.n_bytes / GIB), 3)}
