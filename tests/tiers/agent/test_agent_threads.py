"""Engine threads that write and read beside an advisor that moves, compacts, registers and unregisters without end."""

from __future__ import annotations

import threading
import time
from random import Random

import pytest

from tenuto.errors import Cause
from tenuto.memory.arena import HostArena
from tests.tiers.agent.agent_rig import BLOCKS, EXTENT, LAYOUT, Engine, folder_at, room_for

pytestmark = pytest.mark.adapter

N_THREADS, N_SLOTS, SECONDS = 3, 12, 5.0


class Told:
    """Blocks that the agent said were lost."""

    def __init__(self, agent) -> None:
        self.agent = agent
        self.lock = threading.Lock()
        self.lost: set[bytes] = set()

    def is_lost(self, block: bytes, *, takes: bool = False) -> bool:
        with self.lock:
            self.lost.update(self.agent.take_news().lost)
            found = block in self.lost
            if takes:
                self.lost.discard(block)
            return found


class Worker:
    """Slots and blocks of its own, so that no slot is read while it is written."""

    def __init__(self, engine: Engine, told: Told, at: int) -> None:
        self.rng, self.told = Random(at), told
        self.mine = Engine.__new__(Engine)
        self.mine.__dict__ |= engine.__dict__ | {"arena": HostArena(16, EXTENT), "held": {}}
        self.slots = range(at, N_SLOTS, N_THREADS)
        self.numbers = range(at, len(BLOCKS), N_THREADS)
        self.faults: list[object] = []
        self.n_done = self.n_refused = self.n_lost = 0

    def run(self, over: threading.Event) -> None:
        self.over = over
        try:
            while not over.is_set():
                self.rng.choice([self.write, self.write_by_layers, self.read, self.read, self.forget])()
                self.n_done += 1
        except BaseException as error:  # noqa: BLE001 - a thread's end is the test's
            self.faults.append(error)

    def fresh(self) -> tuple[int, int]:
        slot = self.rng.choice(self.slots)
        number = self.rng.choice([number for number in self.numbers if number not in self.mine.held.values()])
        self.mine.held.pop(slot, None)
        self.told.is_lost(self.mine.hash(number), takes=True)
        return slot, number

    def note(self, failures) -> None:
        if failures:  # as while files are added; a manager waits too
            self.n_refused += 1
            self.over.wait(0.01)
        self.faults += [failure for failure in failures if failure.cause is not Cause.NO_SPACE]

    def write(self) -> None:
        slot, number = self.fresh()
        self.note(self.mine.write({slot: number}))

    def write_by_layers(self) -> None:
        slot, number = self.fresh()
        items = self.mine.items({slot: number})
        for layer in range(LAYOUT.n_layers):
            if failures := self.mine.agent.write_layers(items, (layer, layer + 1)):
                self.note(failures)
                return
        failures = self.mine.agent.commit(items)
        self.note(failures)
        if not failures:
            self.mine.held[slot] = number

    def read(self) -> None:
        if not self.mine.held:
            return
        slots = self.rng.sample(list(self.mine.held), min(3, len(self.mine.held)))
        for slot, cause in zip(slots, self.mine.read(*slots), strict=True):
            if cause:
                number = self.mine.held.pop(slot)
                self.n_lost += 1
                if not self.told.is_lost(self.mine.hash(number)):
                    self.faults.append((slot, number, cause))

    def forget(self) -> None:
        if self.mine.held:
            self.mine.forget(self.rng.choice(list(self.mine.held)))


def advise(agent, folder, over: threading.Event, faults: list, counts: dict) -> None:
    rng = Random(77)
    hashes = [block.key.hash for block in BLOCKS]
    try:
        while not over.is_set():
            names = [volume.name for volume in agent.describe().volumes]
            match step := rng.choice(["move"] * 6 + ["compact", "compact", "drop", "register", "unregister"]):
                case "move":
                    agent.move(rng.sample(hashes, 32), rng.choice(names))
                case "compact":
                    agent.compact(rng.choice(names))
                case "drop":
                    agent.drop(rng.sample(hashes, 1))
                case "register" if len(names) < 3:
                    name = rng.choice(sorted({"a", "b"}.difference(names)))
                    agent.register_volume(name, folder_at(folder / name), room_for(8))
                case "unregister" if len(names) > 1:
                    agent.unregister_volume(rng.choice(names[1:]))
            counts[step] = counts.get(step, 0) + 1
    except BaseException as error:  # noqa: BLE001 - a thread's end is the test's
        faults.append(error)


def test_engine_threads_read_and_write_right_while_an_advisor_never_rests(tmp_path):
    engine = Engine(tmp_path / "home", n_home=20)
    engine.fill(range(N_SLOTS))
    engine.forget(*range(N_SLOTS))
    told, over, counts = Told(engine.agent), threading.Event(), {}
    workers = [Worker(engine, told, at) for at in range(N_THREADS)]
    faults: list[object] = []
    threads = [threading.Thread(target=worker.run, args=(over,)) for worker in workers]
    threads.append(threading.Thread(target=advise, args=(engine.agent, tmp_path, over, faults, counts)))
    for thread in threads:
        thread.start()
    time.sleep(SECONDS)
    over.set()
    for thread in threads:
        thread.join()
    assert faults + [fault for worker in workers for fault in worker.faults] == []
    assert all(worker.n_done > 50 for worker in workers)
    assert min(counts.values()) >= 2, counts
    assert sum(worker.n_refused for worker in workers) < sum(worker.n_done for worker in workers) / 10
    engine.held = {slot: number for worker in workers for slot, number in worker.mine.held.items()}
    engine.held = {slot: number for slot, number in engine.held.items() if not told.is_lost(engine.hash(number))}
    engine.check()
    before = dict(engine.held)
    engine.restart()
    assert engine.held == before
    engine.check()
    engine.agent.close()
    print(counts, [(worker.n_done, worker.n_refused, worker.n_lost) for worker in workers])
