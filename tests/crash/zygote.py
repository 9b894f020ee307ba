"""Forks a writer, kills it, and lets another fork read what it left; one line of JSON at the end.

Run as a script: python zygote.py ROOT ROUNDS SEED [FOLDER ...]. No thread runs here, so forking is safe. Blocks are
striped over ROOT and the folders.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.pools import Allocated, Pool
from tenuto.tiers.disk.quota import used_bytes
from tenuto.tiers.store import SlotIO
from tests.tiers.disk_fixtures import Disk, block

LAYOUT = ExtentLayout(32, (0, 4), (0, 2), 64, 64, Dtype.FLOAT32)
CAPACITY = 64 << 20
HIGHEST = 1200  # block numbers, so that many are evicted and some written again


OTHERS = tuple(map(Path, sys.argv[4:]))
OPTIONS = {"capacity": CAPACITY, "layout": LAYOUT, "others": OTHERS, "file_slots": 24 if OTHERS else 4}
"""Striped files have units on every folder, and extents that lie on two."""


def write_for_ever(root: Path, log: int, rng: random.Random) -> None:
    """Store and evict as a manager does; tell the log what was confirmed, and what is about to go."""
    disk = Disk(root, owner="writer", n_arena=8, **OPTIONS)
    pool = Pool("disk")
    pool.grow(disk.store.capacity().n_slots)
    pool.restore(disk.store.recovered)
    numbers = {block(number).key.hash: number for number in range(HIGHEST)}
    for slot, key in disk.store.recovered:
        os.write(log, b"S %d %d\n" % (numbers[key.hash], slot))
    while True:
        capacity = disk.store.capacity()
        pool.grow(capacity.n_slots)
        wanted = [n for n in rng.sample(range(HIGHEST), 8) if block(n).key.hash not in pool][: rng.randint(1, 8)]
        answer = pool.allocate(len(wanted), evict=not capacity.is_growing)
        if not isinstance(answer, Allocated):
            time.sleep(0.001)
            continue
        for key in answer.evicted:
            os.write(log, b"E %d\n" % numbers[key.hash])
        slots = answer.lease.slots
        pool.apply(answer.lease, [block(n).key for n in wanted])
        items = [
            SlotIO(slot, block(n).key, disk.fill(at, n).buffer)
            for at, (slot, n) in enumerate(zip(slots, wanted, strict=True))
        ]
        failures = disk.store.write(items)
        assert not failures, failures
        pool.release(pool.register(answer.lease).lease)
        for slot, n in zip(slots, wanted, strict=True):
            os.write(log, b"S %d %d\n" % (n, slot))


def look(root: Path, log_text: str) -> dict:
    """Open what is left and check every promise; what was found."""
    disk = Disk(root, owner="reader", n_arena=2, **OPTIONS)
    recovered = {key.hash: slot for slot, key in disk.store.recovered}
    assert len(recovered) == len(disk.store.recovered), "a block twice"
    kept: dict[int, int] = {}
    for line in log_text.splitlines():
        what, *fields = line.split()
        if what == "S":
            kept[int(fields[0])] = int(fields[1])
        elif what == "E":
            kept.pop(int(fields[0]), None)
    lost = [n for n, slot in kept.items() if recovered.get(block(n).key.hash) != slot]
    numbers = {block(number).key.hash: number for number in range(HIGHEST)}
    bad = [slot for key, slot in recovered.items() if disk.read(slot, numbers[key]) != "ok"]
    present = {path.name for other in (root, *OTHERS) for path in other.glob("*/*/rank-0/pool-*.kv")}
    listed = {f"pool-{number:05d}.kv" for number in disk.store._manifest.files()}  # after: one of `present` may be new
    disk.close()  # ends the growth, so that both sums below see the same files
    used = used_bytes(root, *OTHERS)
    real = sum(path.stat().st_size for other in (root, *OTHERS) for path in other.glob("*/**/*") if path.is_file())
    return {
        "blocks": len(recovered), "lost": lost, "bad": bad, "used": used, "over": used > CAPACITY,
        "used_is_right": used == real, "orphans": sorted(present - listed - {f"pool-{len(listed):05d}.kv"}),
        "confirmed": len(kept), "folders": max(len(list(other.glob("*/*/rank-0"))) for other in (root, *OTHERS)),
    }  # fmt: skip


def in_child(work) -> int:
    """Fork; the child does `work` and ends."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child must never return
            traceback.print_exc()
            os._exit(1)
    return pid


def one_round(root: Path, rng: random.Random, log_path: Path) -> dict:
    """Write, kill at a random moment, look."""
    log = os.open(log_path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    seed = rng.random()
    pid = in_child(lambda: write_for_ever(root, log, random.Random(seed)))
    time.sleep(rng.uniform(0.0, 0.25))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(log)
    assert os.WIFSIGNALED(status), "the writer ended by itself"
    out = log_path.with_suffix(".json")
    reader = in_child(lambda: out.write_text(json.dumps(look(root, log_path.read_text()))))
    _, status = os.waitpid(reader, 0)
    assert status == 0, "the reader failed"
    return json.loads(out.read_text())


def main() -> None:
    root, rounds, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    found = [one_round(root, rng, root.parent / "log") for _ in range(rounds)]
    print(json.dumps({
        "rounds": rounds,
        "with_blocks": sum(f["blocks"] > 0 for f in found),
        "most_blocks": max(f["blocks"] for f in found),
        "cut_short": sum(f["blocks"] != f["confirmed"] for f in found),
        **{key: [f[key] for f in found if f[key]] for key in ("lost", "bad", "over", "orphans")},
        "used_wrong": sum(not f["used_is_right"] for f in found),
        "folders": max(f["folders"] for f in found),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
