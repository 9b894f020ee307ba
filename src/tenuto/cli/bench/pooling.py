"""What a pool of a million blocks costs, in time and memory."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean, median

from tenuto.cli.bench.pooloptions import PoolOptions
from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Figures
from tenuto.config import Host
from tenuto.pools import Full, Pool
from tenuto.pools.guarded import guarded_policy
from tenuto.tokens import BlockHash, BlockKey

HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """A pool of `n_blocks`; prompts of `chain` blocks, `n_alive` at a time, in leases of `batch` blocks."""

    n_blocks: int = 1 << 20
    chain: int = 8192
    n_alive: int = 8
    batch: int = 64
    n_evicting: int = 32
    """Groups of `n_alive` prompts in the evicting phase."""
    n_matches: int = 200
    policy: str = Host().policy
    """As of a pool that is given none."""

    def chosen(self, options: PoolOptions) -> PoolSizes:
        """These, but for what the options say; whole groups of prompts fill the pool."""
        group = self.chain * self.n_alive
        n_blocks = self.n_blocks if options.n_blocks is None else -(-options.n_blocks // group) * group
        return replace(self, n_blocks=n_blocks, policy=options.policy or self.policy)


def measure_pool(sizes: PoolSizes, bar: Bar) -> Figures:
    """Times and memory of one `Pool`.

    *Filling*, then *evicting* (the pool is full, so each new block takes the slot of an old one): prompts of
    8192 blocks arrive, eight at a time in turns, in leases of 64 blocks that live their whole life: allocate,
    apply, register, release. `fill_us` and `allocate_register_us` are that life per block, amortised: the mean
    over the phase, in which everything that happens now and then (an index that is built anew) happens. Hashes
    are new objects, made when a prompt comes, and keys when a batch comes, both outside the time.

    `match_8192_ms` leases a prompt of 8192 blocks that is there, chosen at random; `match_scattered_8192_ms`
    leases 8192 blocks drawn at random from the whole pool, which no prompt does: the worst a memory can do.
    Their hashes are new objects too, as a new request brings them. `release_8192_ms` gives such a lease back.

    `bytes_per_block`: growth of the process's resident memory (the arrays of pool and policy, index, keys and hash
    bytes, and what the allocator wastes on them) from before the pool is made until it is full, per block.

    A policy that has kept no prompt whole leaves none to match, and has no such figures. Raises `InvariantError` for
    a policy of others that fails.
    """
    rounds = sizes.n_blocks // (sizes.chain * sizes.n_alive)
    gc.collect()
    before = resident_bytes()
    pool = Pool("bench", sizes.n_blocks, guarded_policy(sizes.policy, "--policy"))
    groups = _Groups(sizes, pool)
    fill = [_live(pool, group) for group in bar.over(groups.take(rounds), "pool: fill", rounds)]
    gc.collect()
    per_block = (resident_bytes() - before) / sizes.n_blocks
    n = sizes.n_evicting
    evicting = [_live(pool, group) for group in bar.over(groups.take(n), "pool: evict", n)]
    matching: Figures = {}
    if whole := groups.whole():
        in_turn, released = _match(pool, groups.some(whole, sizes.n_matches), sizes, bar)
        scattered, _ = _match(pool, groups.scattered(whole, sizes.n_matches), sizes, bar)
        matching = {
            "match_8192_ms": round(1e3 * in_turn, 3),
            "match_scattered_8192_ms": round(1e3 * scattered, 3),
            "release_8192_ms": round(1e3 * released, 3),
        }
    pool.check()
    return matching | {
        "allocate_register_us": round(1e6 * mean(evicting), 3),
        "fill_us": round(1e6 * mean(fill), 3),
        "bytes_per_block": round(per_block, 1),
        "n_blocks": sizes.n_blocks,
    }


def resident_bytes() -> int:
    """Resident memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class _Groups:
    """Prompts by number, made again whenever they are asked for: nothing is kept that would count as the pool's."""

    def __init__(self, sizes: PoolSizes, pool: Pool) -> None:
        self._sizes = sizes
        self._pool = pool
        self._n_taken = 0
        self._random = Random(0)

    def prompt(self, number: int) -> list[BlockHash]:
        """The hashes of prompt `number`."""
        data = Random(number).randbytes(HASH_BYTES * self._sizes.chain)
        return [BlockHash(data[at : at + HASH_BYTES]) for at in range(0, len(data), HASH_BYTES)]

    def take(self, n: int) -> Iterator[Iterator[list[BlockKey]]]:
        """The next `n` groups of prompts: batches of keys in the order they come."""
        for _ in range(n):
            numbers = range(self._n_taken, self._n_taken + self._sizes.n_alive)
            self._n_taken += self._sizes.n_alive
            yield self._batches([self.prompt(number) for number in numbers])

    def some(self, whole: list[int], n: int) -> Iterator[list[BlockHash]]:
        """The hashes of `n` of these prompts."""
        return map(self.prompt, self._random.choices(whole, k=n))

    def scattered(self, whole: list[int], n: int) -> Iterator[list[BlockHash]]:
        """`n` times as many hashes as a prompt has, from anywhere in these prompts."""
        data = b"".join(Random(number).randbytes(HASH_BYTES * self._sizes.chain) for number in whole)
        for _ in range(n):
            chosen = self._random.sample(range(len(data) // HASH_BYTES), self._sizes.chain)
            yield [BlockHash(data[at * HASH_BYTES : (at + 1) * HASH_BYTES]) for at in chosen]

    def whole(self) -> list[int]:
        """Numbers of the prompts that are in the pool from end to end now."""
        return [number for number in range(self._n_taken) if self._is_whole(self.prompt(number))]

    def _is_whole(self, hashes: list[BlockHash]) -> bool:
        """Policies evict chains from their ends, or their blocks in any order."""
        return hashes[-1] in self._pool and all(block in self._pool for block in hashes)

    def _batches(self, prompts: list[list[BlockHash]]) -> Iterator[list[BlockKey]]:
        """A batch of each prompt in turn, until all have ended."""
        for at in range(0, self._sizes.chain, self._sizes.batch):
            for hashes in prompts:
                part = hashes[at : at + self._sizes.batch]
                parents = [hashes[max(at - 1, 0)], *part]
                yield [BlockKey(block, parent, hashes[0]) for parent, block in zip(parents, part, strict=False)]


def _live(pool: Pool, batches: Iterator[list[BlockKey]]) -> float:
    """Seconds per block for the whole life of these batches."""
    seconds, n_blocks = 0.0, 0
    for keys in batches:
        began = time.perf_counter()
        answer = pool.allocate(len(keys))
        if isinstance(answer, Full):
            raise TypeError("nothing is leased, yet the pool is full")
        pool.apply(answer.lease, keys)
        pool.release(pool.register(answer.lease).lease)
        seconds += time.perf_counter() - began
        n_blocks += len(keys)
    return seconds / n_blocks


def _match(pool: Pool, prompts: Iterator[list[BlockHash]], sizes: PoolSizes, bar: Bar) -> tuple[float, float]:
    """Median seconds to lease a prompt, and to release it."""
    matching: list[float] = []
    releasing: list[float] = []
    for hashes in bar.over(prompts, "pool: match", sizes.n_matches):
        began = time.perf_counter()
        lease = pool.match(hashes)
        matched = time.perf_counter()
        n_found = len(lease)
        pool.release(lease)
        releasing.append(time.perf_counter() - matched)
        matching.append(matched - began)
        if n_found != len(hashes):
            raise TypeError(f"{n_found} of {len(hashes)} blocks found in a pool that has them all")
    return median(matching), median(releasing)
