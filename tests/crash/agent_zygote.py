"""Forks an engine whose blocks are moved without end, kills it, and looks at what is left; a line of JSON at the end.

Run as a script: python agent_zygote.py FOLDER ROUNDS SEED. No thread runs here, so forking is safe.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from tenuto.tiers.agent.bindings import At
from tenuto.tiers.disk.quota import used_bytes
from tests.crash.zygote import in_child
from tests.tiers.agent.agent_rig import BLOCKS, EXTENT, Engine, folder_at, room_for

N_HOME, N_SLOTS, N_OTHER = 28, 16, 10
CAPACITY = {"home": room_for(N_HOME), "a": room_for(N_OTHER), "b": room_for(N_OTHER)}
NUMBERS = {block.key.hash: number for number, block in enumerate(BLOCKS)}


def live(folder: Path, log: int, rng: random.Random) -> None:
    """Write as a manager does, beside an advisor; tell the log what was confirmed, and what is about to go."""
    engine = Engine(folder / "home", n_home=N_HOME)
    for slot, number in engine.held.items():
        os.write(log, b"S %d %d\n" % (number, slot))
    seed = rng.random()
    threading.Thread(target=advise, args=(engine.agent, folder, log, random.Random(seed)), daemon=True).start()
    while True:
        now = engine.agent.capacity()
        if now.n_usable <= len(engine.held) and now.is_growing:
            time.sleep(0.001)
            continue
        slot = rng.randrange(min(N_SLOTS, now.n_slots))
        number = rng.choice([number for number in range(len(BLOCKS)) if number not in engine.held.values()])
        if slot in engine.held:
            os.write(log, b"E %d\n" % engine.held[slot])
        if not engine.write({slot: number}):
            os.write(log, b"S %d %d\n" % (number, slot))


def advise(agent, folder: Path, log: int, rng: random.Random) -> None:
    """Say what is under way before it begins."""
    hashes = [block.key.hash for block in BLOCKS]
    while True:
        names = [volume.name for volume in agent.describe().volumes]
        step = rng.choice(["move"] * 5 + ["compact", "compact", "register", "register", "unregister"])
        os.write(log, b"D %s\n" % step.encode())
        match step:
            case "move":
                agent.move(rng.sample(hashes, 40), rng.choice(names))
            case "compact":
                agent.compact(rng.choice(names))
            case "register" if len(names) < 3:
                name = rng.choice(sorted({"a", "b"}.difference(names)))
                agent.register_volume(name, folder_at(folder / name), CAPACITY[name])
            case "unregister" if len(names) > 1:
                agent.unregister_volume(rng.choice(names[1:]))


def look(folder: Path, log_text: str) -> dict:
    """Open what is left and check every promise; what was found."""
    engine = Engine(folder / "home", n_home=N_HOME)
    kept, under_way = {}, ""
    for line in log_text.splitlines():
        what, *fields = line.split()
        if what == "S":
            kept[int(fields[0])] = int(fields[1])
        elif what == "E":
            kept.pop(int(fields[0]), None)
        else:
            under_way = fields[0]
    found = [(NUMBERS[key.hash], slot) for slot, key in engine.agent.recovered]
    books = engine.agent._books
    listed = [
        (name, place, books.slot_at(At(name, place)))
        for name, volume in books.room.volumes.items()
        for place, _ in volume.blocks_from(0, 1000)
    ]
    engine.agent.check()
    bad = [slot for slot in engine.held if engine.read(slot) != [None]]
    names = set(books.room.volumes) - {""}
    sizes = {
        name or "home": {number: n * EXTENT for number, n in volume._manifest.files().items()}
        for name, volume in books.room.volumes.items()
    }
    engine.agent.close()
    orphans = [name for name in {"a", "b"} - names if list((folder / name).glob("*/*/*"))]
    for root, files in sizes.items():
        assert len(list((folder / root).glob("*/*/rank-0"))) == 1, f"several folders under {root}"
        for path in (folder / root).glob("*/*/rank-0/pool-*.kv"):
            number = int(path.stem.removeprefix("pool-"))
            if number <= max(files, default=-1) and path.stat().st_size != files.get(number):
                orphans.append(str(path))
    return {
        "blocks": len(found), "elsewhere": sum(name != "" for name, *_ in listed), "bad": bad, "under_way": under_way,
        "lost": [number for number in kept if number not in dict(found)], "orphans": orphans,
        "twice": len({slot for _, slot in found}) != len(found) or len({slot for *_, slot in listed}) != len(listed),
        "over": [root for root, capacity in CAPACITY.items() if used_bytes(folder / root) > capacity],
    }  # fmt: skip


def one_round(folder: Path, rng: random.Random) -> dict:
    """Live, kill at a random moment, look."""
    log_path, out = folder / "log", folder / "found.json"
    log = os.open(log_path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND)
    seed = rng.random()
    pid = in_child(lambda: live(folder, log, random.Random(seed)))
    time.sleep(rng.uniform(0.05, 0.4))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(log)
    assert os.WIFSIGNALED(status), "the engine ended by itself"
    reader = in_child(lambda: out.write_text(json.dumps(look(folder, log_path.read_text()))))
    _, status = os.waitpid(reader, 0)
    assert status == 0, "the reader failed"
    return json.loads(out.read_text())


def main() -> None:
    folder, rounds, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    print(json.dumps([one_round(folder, rng) for _ in range(rounds)]))


if __name__ == "__main__":
    main()
