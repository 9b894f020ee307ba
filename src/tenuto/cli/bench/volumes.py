"""Blocks that are read while an agent moves them between volumes, and while a volume is compacted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import xxhash

from tenuto.cli.bench.measured import Measured
from tenuto.cli.bench.progress import Bar
from tenuto.config import Disk
from tenuto.errors import TenutoError
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.tiers.agent.agent import Identity, StorageAgent
from tenuto.tiers.agent.tier import open_tier
from tenuto.tiers.disk.instance import file_system
from tenuto.tiers.store import SlotIO
from tenuto.tokens import HashChain, Namespace

LAYOUT = ExtentLayout(64, (0, 4), (0, 8), 128, 128, Dtype.BFLOAT16)  # 1 MiB and a header
_GROW_S = 120.0
_CLOSED_SHARE = 0.6  # of the blocks, that are removed before the volume is compacted


@dataclass(frozen=True, slots=True)
class VolumeSizes:
    """`n_blocks` of 1 MiB at home, and room for `fast_share` of them beside; `n_readers` read, `phase_s` at a time."""

    n_blocks: int = 1024
    fast_share: float = 0.1
    n_readers: int = 2
    phase_s: float = 5.0


@dataclass(slots=True)
class _Reads:
    """What readers saw in a phase."""

    seconds: list[float] = field(default_factory=list[float])
    n_wrong: int = 0
    n_failed: int = 0


def measure_volumes(folder: Path, sizes: VolumeSizes, bar: Bar) -> Measured:
    """One home volume full of blocks, and a fast one for a part of them, both in `folder`.

    `wrong` and `failed`: reads of blocks that gave other bytes than were written, or none, while all blocks go to the
    fast volume and back in turns, and while 60 % of the blocks are removed from the home volume, which is compacted
    then. `given_back`: what the file system has more after that, of what the removed blocks and unused slots took.
    `read_slowdown`: the median time of a read while blocks move, over that before.
    """
    bed = _Bed(folder, sizes)
    try:
        bar_steps = iter(bar.over(range(4), "volumes", 4))
        next(bar_steps)
        bed.fill()
        next(bar_steps)
        alone = bed.read_during(lambda: time.sleep(sizes.phase_s))
        next(bar_steps)
        began = time.monotonic()
        during = bed.read_during(bed.move_about)
        moved_s = time.monotonic() - began
        next(bar_steps)
        bed.remove()
        before = bed.disk_bytes()
        compacting = bed.read_during(bed.compact)
        after = bed.disk_bytes()
    finally:
        bed.agent.close()
    free = before - len(bed.there) * LAYOUT.extent_bytes
    phases = (alone, during, compacting)
    figures = {
        "wrong": sum(reads.n_wrong for reads in phases),
        "failed": sum(reads.n_failed for reads in phases),
        "given_back": round((before - after) / free, 3),
        "read_slowdown": round(median(during.seconds) / median(alone.seconds), 2),
        "moved_blocks_per_s": round(bed.n_moved / moved_s),
        "reads": sum(len(reads.seconds) for reads in phases),
    }
    details = {
        "sizes": asdict(sizes), "moved": bed.n_moved, "compacted": bed.n_compacted, "freed_bytes": before - after,
        "read_ms": {name: round(1e3 * median(reads.seconds), 3) for name, reads in
                    zip(("alone", "moving", "compacting"), phases, strict=True) if reads.seconds},
    }  # fmt: skip
    return Measured(figures, file_system=file_system(folder), details=details)


class _Bed:
    """An agent and its blocks; `there`: the sum of each block's payload, by slot."""

    def __init__(self, folder: Path, sizes: VolumeSizes) -> None:
        self._sizes = sizes
        namespace = Namespace("bench", "", "", "bfloat16", "bfloat16", "", LAYOUT.block_tokens,
                              LAYOUT.n_layers, LAYOUT.n_heads, LAYOUT.k_dim, LAYOUT.v_dim)  # fmt: skip
        self._codec = ExtentCodec(LAYOUT, namespace.digest)
        self._chain = HashChain(namespace.digest, LAYOUT.block_tokens)
        self._random = random.Random(0)
        self._chain.append_bytes(self._random.randbytes(4 * LAYOUT.block_tokens * sizes.n_blocks))
        n_bytes = sizes.n_blocks * LAYOUT.extent_bytes
        disk = Disk(path=str(folder / "home"), capacity=n_bytes * 5 // 4, file_bytes=max(n_bytes // 16, 1 << 20))
        tier = open_tier(disk, self._codec, "bench", Identity(namespace, "bench"))
        if not isinstance(tier, StorageAgent):
            raise TenutoError("the disk can't be used now: the line before says why")
        self.agent = tier
        self.there: dict[int, int] = {}
        self.n_moved = self.n_compacted = 0
        n_fast = max(2, int(sizes.n_blocks * sizes.fast_share))
        (folder / "fast").mkdir()
        self.agent.register_volume("fast", str(folder / "fast"), (n_fast + 2) * LAYOUT.extent_bytes * 5 // 4)
        self._n_fast = n_fast

    def fill(self) -> None:
        """Write every block, as there is room for it."""
        arena = HostArena(1, LAYOUT.extent_bytes)
        until = time.monotonic() + _GROW_S
        for slot in range(self._sizes.n_blocks):
            while self.agent.capacity().n_usable <= slot:
                if time.monotonic() > until:
                    raise TenutoError(f"the disk tier grew to only {slot} MiB in {_GROW_S:.0f} s")
                time.sleep(0.002)
            buffer = arena.slot(0)
            self._codec.write_header(buffer, self._chain.block(slot))
            buffer[LAYOUT.header_bytes :] = self._random.randbytes(LAYOUT.payload_bytes)
            if failures := self.agent.write([SlotIO(slot, self._chain.key(slot), buffer)]):
                raise TenutoError(f"a block could not be written: {failures[0].message}")
            self.there[slot] = xxhash.xxh3_64_intdigest(buffer[LAYOUT.header_bytes :])

    def read_during(self, work: Callable[[], None]) -> _Reads:
        """Read blocks at random on threads of their own while `work` runs."""
        over = threading.Event()
        found = [_Reads() for _ in range(self._sizes.n_readers)]
        threads = [threading.Thread(target=self._read, args=(reads, over, seed)) for seed, reads in enumerate(found)]
        for thread in threads:
            thread.start()
        try:
            work()
        finally:
            over.set()
            for thread in threads:
                thread.join()
        return _Reads(
            [seconds for reads in found for seconds in reads.seconds],
            sum(reads.n_wrong for reads in found), sum(reads.n_failed for reads in found),
        )  # fmt: skip

    def move_about(self) -> None:
        """Blocks to the fast volume and back, for a phase."""
        hashes = [self._chain.hashes[slot] for slot in self.there]
        until = time.monotonic() + self._sizes.phase_s
        while time.monotonic() < until:
            some = self._random.sample(hashes, self._n_fast // 2)
            self.n_moved += self.agent.move(some, "fast").n_moved + self.agent.move(some, "").n_moved

    def remove(self) -> None:
        """Forget a part of the blocks, here and there."""
        gone = self._random.sample(sorted(self.there), int(_CLOSED_SHARE * len(self.there)))
        self.agent.forget(gone)
        for slot in gone:
            del self.there[slot]

    def compact(self) -> None:
        """The home volume gets smaller."""
        self.n_compacted = self.agent.compact("").n_moved

    def disk_bytes(self) -> int:
        """What the home volume's pool files take on the file system."""
        return sum(path.stat().st_blocks * 512 for path in self.agent.claim.folder.glob("pool-*.kv"))

    def _read(self, reads: _Reads, over: threading.Event, seed: int) -> None:
        chance, buffer = random.Random(seed), HostArena(1, LAYOUT.extent_bytes).slot(0)
        slots = list(self.there)
        while not over.is_set():
            slot = chance.choice(slots)
            began = time.perf_counter()
            failures = self.agent.read([SlotIO(slot, self._chain.key(slot), buffer)])
            reads.seconds.append(time.perf_counter() - began)
            reads.n_failed += bool(failures)
            payload = buffer[LAYOUT.header_bytes :]
            reads.n_wrong += not failures and xxhash.xxh3_64_intdigest(payload) != self.there[slot]
