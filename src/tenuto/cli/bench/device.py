"""Device ↔ host: every KV format through the real lane, against one pinned copy in the same rounds, by medians."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tenuto.cli.bench.interference import measure_interference
from tenuto.cli.bench.kvshapes import CASES, Case, make_tensors
from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Figures
from tenuto.errors import ConfigError, InvariantError
from tenuto.memory.driver import CudaDriver
from tenuto.memory.layout import choose_block_tokens
from tenuto.memory.paged import PagedKV
from tenuto.memory.pages import PageRun
from tenuto.memory.pinning import pinned_arena
from tenuto.transfers.lanes.cuda import CudaDevice, RingSizes

GIB = 1 << 30
_RING = RingSizes(256 << 20, 384 << 20, 128 << 20, 64, 64)


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """`kv_bytes` of engine memory move at once, and a quarter of it: a prompt of 32k tokens, a step of 8k."""

    kv_bytes: int = 4 * GIB
    n_rounds: int = 9
    ring: RingSizes = _RING
    n_products: int = 40
    """Matrix products, or copies of memory, in one sample of interference."""


class Bed:
    """An engine's memory in one format, a pinned arena, and the device between them."""

    def __init__(self, case: Case, sizes: DeviceSizes, driver: CudaDriver) -> None:
        self.case = case
        bare = case.layout(0)
        token_bytes = bare.n_heads * (bare.k_dim + bare.v_dim) * bare.dtype.itemsize
        self.layout = case.layout(choose_block_tokens(0, case.page_tokens, token_bytes))
        self.n_blocks = max(1, sizes.kv_bytes // self.layout.payload_bytes)
        self.n_bytes = self.n_blocks * self.layout.n_layers * self.layout.n_heads * self.layout.run_bytes
        per_block = self.layout.block_tokens // case.page_tokens
        self.tensors = make_tensors(case, self.n_blocks * per_block + 1, torch.device("cuda"))
        pages = list(range(1, self.n_blocks * per_block + 1))
        random.Random(4).shuffle(pages)
        self.runs = [PageRun(tuple(pages[at : at + per_block])) for at in range(0, len(pages), per_block)]
        self.slots = random.Random(5).sample(range(self.n_blocks), self.n_blocks)
        self.kv = PagedKV(self.tensors, self.layout, case.page_tokens, case.format)
        self.arena = pinned_arena(self.n_blocks, self.layout.extent_bytes, driver)
        self.device = CudaDevice(self.kv, self.arena, sizes.ring, driver)

    def store(self, share: int = 1) -> None:
        """Device → host: all of it, or one part in `share`."""
        n = self.n_blocks // share
        self.device.gather(self.runs[:n], self.slots[:n]).wait()

    def load(self, share: int = 1) -> None:
        """Host → device: all of it, or one part in `share`."""
        n = self.n_blocks // share
        self.device.scatter(self.runs[:n], self.slots[:n], self.device.mark())

    def check(self) -> None:
        """What was stored and wiped comes back, bit for bit. Raises `InvariantError`."""
        flat = [tensor.view(torch.uint8) for tensor in self.tensors]
        before = [tensor.clone() for tensor in flat]
        self.store()
        for tensor in flat:
            tensor[:, 1:].zero_() if self.case.page_axis == 1 else tensor[1:].zero_()
        self.load()
        if not all(torch.equal(one, other) for one, other in zip(before, flat, strict=True)):
            raise InvariantError(f"{self.case.name}: what came back differs from what was stored")

    def close(self) -> None:
        """Give the memory back."""
        torch.cuda.synchronize()
        self.arena.close()


def measure_device(sizes: DeviceSizes, bar: Bar) -> Figures:
    """Rates, ratios to the ceiling, cost of submitting, interference. Raises `ConfigError` without a GPU."""
    if not torch.cuda.is_available():
        raise ConfigError("bench device: torch finds no CUDA device; run it on a machine with a GPU")
    driver = CudaDriver()
    figures: Figures = {}
    plain = Plain(sizes.kv_bytes)
    for case in bar.over(CASES, "formats", len(CASES)):
        bed = Bed(case, sizes, driver)
        bed.check()
        figures |= _rates(bed, sizes, plain)
        bed.close()
        del bed
        torch.cuda.empty_cache()
    bed = Bed(next(case for case in CASES if case.name == "packed"), sizes, driver)
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
        name = f"{direction}_{bed.case.name}" + ("_quarter" if of_part else "")
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
