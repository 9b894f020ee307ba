"""How fast a prompt becomes block hashes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import median

from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Figures
from tenuto.tokens import ExtraKeys, HashChain, MediaSpan

ROOT = bytes(16)
CHUNK = 512
VOCABULARY = 128_256
EXTRA = ExtraKeys("adapter", "0" * 64, "salt", (MediaSpan("f" * 64, 1000, 1600), MediaSpan("e" * 64, 5000, 5600)))


@dataclass(frozen=True, slots=True)
class HashSizes:
    """`n_tokens` in each of `n_rounds` rounds."""

    n_tokens: int = 1 << 17
    n_rounds: int = 15


def measure_hash(sizes: HashSizes, bar: Bar) -> Figures:
    """Tokens per second of `HashChain`, median of the rounds.

    Input is a list of int, as an engine gives it: turning it into bytes is in the time. `_16` and `_64` are
    tokens per block; `_chunked` appends 512 tokens at a time, as chunked prefill does; `_extra` has an adapter,
    a salt and two images in the identity.
    """
    tokens = Random(0).choices(range(VOCABULARY), k=sizes.n_tokens)
    chunks = [tokens[at : at + CHUNK] for at in range(0, len(tokens), CHUNK)]
    cases: dict[str, Callable[[], HashChain]] = {}
    for size in (16, 64):
        cases[f"tokens_per_s_{size}"] = lambda size=size: _hash(size, [tokens])
        cases[f"tokens_per_s_{size}_chunked"] = lambda size=size: _hash(size, chunks)
        cases[f"tokens_per_s_{size}_extra"] = lambda size=size: _hash(size, [tokens], EXTRA)
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in bar.over(range(sizes.n_rounds), "hash", sizes.n_rounds):
        for name, case in cases.items():
            began = time.perf_counter()
            case()
            seconds[name].append(time.perf_counter() - began)
    return {name: round(sizes.n_tokens / median(times)) for name, times in seconds.items()}


def _hash(block_tokens: int, chunks: list[list[int]], extra: ExtraKeys | None = None) -> HashChain:
    chain = HashChain(ROOT, block_tokens, extra)
    for chunk in chunks:
        chain.append(chunk)
    return chain
