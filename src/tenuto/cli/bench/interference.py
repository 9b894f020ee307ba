"""What continuous transfers cost the computing beside them, against what a plain pinned copy costs."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch

from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Figures

_SIDE = 8192
_COPY_BYTES = 1 << 30


def measure_interference(
    store: Callable[[], None], load: Callable[[], None], n: int, n_rounds: int, bar: Bar
) -> Figures:
    """`gemm_slowdown` and `copy_slowdown`: the worse direction's, each divided by a plain copy's own.

    A sample is `n` bf16 products of 8192 x 8192 matrices, or `n` copies of 1 GiB within the GPU's memory, timed by
    events while another thread transfers without a pause.
    """
    one, other, result = (torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    here, there = (torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    pinned = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    staged = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    work: dict[str, Callable[[], object]] = {
        "gemm": lambda: torch.mm(one, other, out=result),
        "copy": lambda: there.copy_(here),
    }
    beside: dict[str, Callable[[], None] | None] = {
        "alone": None,
        "plain_d2h": lambda: _plain(pinned, staged), "ring_d2h": store,
        "plain_h2d": lambda: _plain(staged, pinned), "ring_h2d": load,
    }  # fmt: skip
    samples: dict[tuple[str, str], list[float]] = {}
    for _ in bar.over(range(n_rounds), "interference", n_rounds):
        for name, transfer in beside.items():
            with _continuously(transfer):
                for kind, do in work.items():
                    samples.setdefault((kind, name), []).append(_milliseconds(do, n))
    median = {key: statistics.median(values) for key, values in samples.items()}
    figures: Figures = {}
    for kind in work:
        ratios = {way: median[kind, f"ring_{way}"] / median[kind, f"plain_{way}"] for way in ("d2h", "h2d")}
        figures[f"{kind}_slowdown"] = round(max(ratios.values()), 4)
        for way, ratio in ratios.items():
            figures[f"{kind}_slowdown_{way}"] = round(ratio, 4)
            figures[f"{kind}_beside_plain_{way}"] = round(median[kind, f"plain_{way}"] / median[kind, "alone"], 4)
            figures[f"{kind}_beside_ring_{way}"] = round(median[kind, f"ring_{way}"] / median[kind, "alone"], 4)
    return figures


def _plain(target: torch.Tensor, source: torch.Tensor) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        target.copy_(source, non_blocking=True)
    stream.synchronize()


def _milliseconds(do: Callable[[], object], n: int) -> float:
    for _ in range(3):
        do()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(n):
        do()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / n


@contextmanager
def _continuously(transfer: Callable[[], None] | None) -> Generator[None]:
    """Another thread transfers, over and over, until the block ends."""
    if transfer is None:
        yield
        return
    ending = threading.Event()

    def loop() -> None:
        while not ending.is_set():
            transfer()

    thread = threading.Thread(target=loop, name="transfers")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
