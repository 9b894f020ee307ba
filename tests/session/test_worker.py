"""A worker on the CPU, without an engine: what it answers when it is called, and when it is not."""

import fcntl
import os
import threading
from pathlib import Path

import pytest
import torch

from tenuto.config import load_config
from tenuto.connectors.session import Leader, Progress, Setup, Worker
from tenuto.connectors.session import worker as worker_module
from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.tiers.disk import DiskStore
from tenuto.traces import is_recording, read_trace
from tests.session.session_rig import BLOCK, LAYOUT, NAMESPACE, PAGE, View

pytestmark = pytest.mark.unit

TOKENS = list(range(3 * BLOCK))
PAGES = range(1, 1 + len(TOKENS) // PAGE)


@pytest.fixture
def engine():
    """A leader and its worker beside two layers of 16 pages with random content."""
    config = load_config({"tiers": {"host": {"capacity": 16 * LAYOUT.extent_bytes}}})
    setup = Setup(config, NAMESPACE, LAYOUT, PAGE, "e")
    leader, worker = Leader(setup), Worker(setup)
    worker.register([torch.randn(16, 1, PAGE, 32) for _ in range(2)])
    leader.connect({0: worker.handshake()})
    yield leader, worker
    worker.shutdown()


def plan_of(leader):
    """A step that computes the prompt."""
    return leader.plan_step([(View("a", TOKENS), Progress("a", PAGES, True, len(TOKENS)))], is_idle=False)


def hear(leader, worker):
    worker.poll()
    report = worker.report()
    leader.receive(report)
    leader.check()
    return report


def test_a_step_that_is_carried_out_keeps_its_blocks(engine):
    leader, worker = engine
    plan = plan_of(leader)
    worker.before_forward(plan)
    worker.begin_step(plan)
    worker.end_forward(plan)
    hear(leader, worker)
    assert leader.lookup(View("b", TOKENS), 0) == len(TOKENS)
    assert not leader.has_pending


def test_copies_after_a_forward_that_nobody_told_of_are_given_up_at_the_next_step(engine):
    leader, worker = engine
    plan = plan_of(leader)
    worker.before_forward(plan)
    worker.begin_step(plan)
    worker.begin_step(leader.plan_step([], is_idle=True))
    report = hear(leader, worker)
    ((result,),) = report.results.values()
    assert {failure.cause for failure in result.failures} == {Cause.CANCELLED}
    assert not leader.has_pending
    assert leader.lookup(View("b", TOKENS), 0) == 0


def test_pages_that_nobody_let_us_save_in_time_are_not_read_later(engine):
    leader, worker = engine
    view = View("a", TOKENS[:BLOCK])
    leader.plan_step([(view, Progress("a", PAGES, True, BLOCK - 1))], is_idle=False)
    view.n_prompt_tokens = 0  # its block counts as generated, so it is held back
    leader.plan_step([(view, Progress("a", (), False, BLOCK))], is_idle=False)
    leader.finish("a")
    plan = leader.plan_step([], is_idle=True)
    assert plan.before_forward
    worker.begin_step(plan)
    ((result,),) = hear(leader, worker).results.values()
    assert result.failures[0].cause is Cause.CANCELLED
    assert not leader.has_pending


class Held:
    """A device whose gathers land when they are let go."""

    def __init__(self):
        self.let_go = threading.Event()
        self.has_ended = False

    def gather(self, runs, slots):
        return self

    def wait(self):
        assert self.let_go.wait(30)

    def settle(self):
        pass

    def mark(self):
        pass


class Watched:
    """Counts how often it is closed."""

    def __init__(self, thing):
        self.thing, self.closed = thing, threading.Event()
        self.n_closed = 0

    def __getattr__(self, name):
        return getattr(self.thing, name)

    def close(self, *given):
        self.n_closed += 1
        self.closed.set()
        return self.thing.close(*given)


@pytest.fixture
def landing(monkeypatch):
    """A leader, its worker with a copy out of the engine that has not landed, the device, the arena."""
    device = Held()
    monkeypatch.setattr(worker_module, "make_device", lambda *_: device)
    arenas = []
    real = worker_module.make_arena
    monkeypatch.setattr(worker_module, "make_arena", lambda *given: arenas.append(Watched(real(*given))) or arenas[0])
    config = load_config({
        "tiers": {"host": {"capacity": 16 * LAYOUT.extent_bytes}}, "runtime": {"shutdown_timeout_s": 0.05},
    })  # fmt: skip
    setup = Setup(config, NAMESPACE, LAYOUT, PAGE, "e")
    leader, worker = Leader(setup), Worker(setup)
    worker.register([torch.randn(16, 1, PAGE, 32) for _ in range(2)])
    leader.connect({0: worker.handshake()})
    plan = plan_of(leader)
    worker.before_forward(plan)
    worker.begin_step(plan)
    worker.end_forward(plan)
    worker.poll()
    assert worker.report() is None
    yield leader, worker, device, arenas[0]
    device.let_go.set()


def test_shutdown_waits_for_what_is_landing_and_then_closes_the_arena(landing):
    _, worker, device, arena = landing
    worker._engine.drain = lambda _: device.let_go.set() or True
    worker.shutdown()
    worker.shutdown()
    assert arena.n_closed == 1


def test_what_lands_after_the_deadline_keeps_the_arena_until_it_has(landing, monkeypatch, our_log):
    _, worker, device, arena = landing
    monkeypatch.setattr(worker_module, "_JOIN_S", 0.05)
    worker.shutdown()
    worker.shutdown()
    assert arena.n_closed == 0
    assert [r.getMessage() for r in our_log()] == [
        "tenuto: 1 transfers had not ended after 0 s at shutdown: their blocks are not kept"
    ]
    device.let_go.set()
    assert arena.closed.wait(30)
    assert arena.n_closed == 1


def test_a_shutdown_that_is_interrupted_closes_all_the_same(landing):
    _, worker, device, arena = landing

    def interrupt(_):
        device.let_go.set()
        raise KeyboardInterrupt

    worker._engine.drain = interrupt
    with pytest.raises(KeyboardInterrupt):
        worker.shutdown()
    worker.shutdown()
    assert arena.n_closed == 1


def test_a_gpu_that_has_failed_does_not_keep_the_arena(landing, monkeypatch, our_log):
    _, worker, device, arena = landing
    monkeypatch.setattr(worker_module, "_JOIN_S", 0.05)

    def fail(_):
        raise RuntimeError("CUDA error: an illegal memory access\nmore")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    worker._gpu = torch.device("cuda:0")
    worker.shutdown()
    device.let_go.set()
    assert arena.closed.wait(30)
    assert our_log()[-1].getMessage() == "tenuto: cuda:0: CUDA error: an illegal memory access"


def test_an_interpreter_that_gives_no_thread_at_its_end_is_no_error(landing, monkeypatch):
    _, worker, _, arena = landing
    monkeypatch.setattr(worker_module, "_JOIN_S", 0.05)

    def fail(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", fail)
    worker.shutdown()
    assert arena.n_closed == 0


def on_disk(tmp_path, **runtime):
    tiers = {"host": {"capacity": 16 * LAYOUT.extent_bytes}, "disk": {"path": str(tmp_path), "capacity": "16 MiB"}}
    return Setup(load_config({"tiers": tiers, "runtime": runtime}), NAMESPACE, LAYOUT, PAGE, "e")


def tensors():
    return [torch.randn(16, 1, PAGE, 32) for _ in range(2)]


STEPS = ["_PeerPoller", "make_driver", "make_arena", "make_device", "Movers", "TransferEngine"]
OPENING = "tenuto.tiers.disk.opening"
IN_THE_STORE = ["_open_manifest", "Growth", "Peers", "run_devices", "PoolFiles"]
LATE = {
    "_Lane": "tenuto.transfers.engine._Lane",
    "IoThreads": "tenuto.tiers.disk.runtime.queuelane.IoThreads",
} | {name: f"tenuto.tiers.disk.store.{name}" for name in IN_THE_STORE}
LATE |= {name: f"{OPENING}.{name}" for name in ("claim", "quota_of", "DiskStore")}


@pytest.mark.parametrize("error", [ConfigError("no"), RuntimeError("no"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("step", [*STEPS, *LATE])
def test_a_start_that_fails_at_any_step_leaves_nothing_open(tmp_path, monkeypatch, step, error):
    made = {}

    def watching(name, make):
        return lambda *given, **named: made.setdefault(name, Watched(make(*given, **named)))

    monkeypatch.setattr(f"{OPENING}.DiskStore", watching("DiskStore", DiskStore))
    for name in ("make_arena", "TransferEngine"):
        monkeypatch.setattr(worker_module, name, watching(name, getattr(worker_module, name)))

    def fail(*_, **__):
        raise error

    n_threads = threading.active_count()
    worker = Worker(on_disk(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(*([worker_module, step] if step in STEPS else [LATE[step]]), fail)
        with pytest.raises(type(error)):
            worker.register(tensors())
    assert {name: thing.n_closed for name, thing in made.items()} == dict.fromkeys(made, 1)
    assert (worker._store, worker._arena, worker._movers) == (None, None, None)
    worker.shutdown()
    worker.shutdown()
    for thread in threading.enumerate()[n_threads:]:
        thread.join(10)
    for lock in tmp_path.glob("*/*/rank-0/lock"):
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds the folder
    assert not [fd for fd in Path("/proc/self/fd").iterdir() if str(tmp_path) in os.path.realpath(fd)]
    made.clear()
    worker.register(tensors())  # the same worker can start, in the same folder
    assert worker._store is not None
    worker.shutdown()
    assert len(list(tmp_path.glob("*/*/rank-0/lock"))) == 1


def test_a_lane_that_gets_no_thread_ends_those_before_it(tmp_path, monkeypatch):
    begun = []
    start = threading.Thread.start

    def limited(thread):
        if thread.name == "tenuto-direct":
            raise RuntimeError("can't start new thread")
        start(thread)
        begun.append(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="new thread"):
        Worker(on_disk(tmp_path)).register(tensors())
    for thread in begun:
        thread.join(10)
    assert begun
    assert not any(thread.is_alive() for thread in begun)


def test_a_disk_that_can_not_be_opened_now_leaves_its_folder_to_others(tmp_path, monkeypatch, our_log):
    def fail(*_):
        raise StoreError(Cause.IO_ERROR, "broken")

    with monkeypatch.context() as patch:
        patch.setattr("tenuto.tiers.disk.store.Growth.recover", fail)
        first = Worker(on_disk(tmp_path))
        first.register(tensors())
    assert first._store is None
    assert "the disk tier is off until the next start: broken" in our_log()[0].getMessage()
    second = Worker(on_disk(tmp_path))
    second.register(tensors())
    assert second._store._claim.instance.name == "a"
    second.shutdown()
    first.shutdown()


def test_memory_that_we_can_not_move_is_refused_at_start_before_anything_is_made(tmp_path):
    on_it = [tensor.to("meta") for tensor in tensors()]
    with pytest.raises(ConfigError, match=r"memory of the kind 'meta', .* cpu and cuda alone"):
        Worker(on_disk(tmp_path)).register(on_it)
    assert list(tmp_path.iterdir()) == []


def test_arena_and_device_have_one_driver(tmp_path, monkeypatch):
    drivers, had = [], []
    arena, device = worker_module.make_arena, worker_module.make_device
    monkeypatch.setattr(worker_module, "make_driver", lambda _: drivers.append(object()) or drivers[-1])
    monkeypatch.setattr(worker_module, "tell_distance", lambda *_: None)
    monkeypatch.setattr(worker_module, "make_arena", lambda kv, n, driver: had.append(driver) or arena(kv, n, None))
    monkeypatch.setattr(worker_module, "make_device", lambda *given: had.append(given[-1]) or device(*given[:-1], None))
    worker = Worker(on_disk(tmp_path))
    worker.register(tensors())
    worker.shutdown()
    assert had == 2 * drivers


def test_a_trace_tells_what_the_worker_did(tmp_path):
    runtime = {"trace_file": str(tmp_path / "run.json")}
    config = load_config({"tiers": {"host": {"capacity": 16 * LAYOUT.extent_bytes}}, "runtime": runtime})
    setup = Setup(config, NAMESPACE, LAYOUT, PAGE, "e", engine_index=1)
    leader, worker = Leader(setup), Worker(setup, rank=3)
    worker.register([torch.randn(16, 1, PAGE, 32) for _ in range(2)])
    leader.connect({3: worker.handshake()})
    plan = plan_of(leader)
    worker.before_forward(plan)
    worker.begin_step(plan)
    worker.end_forward(plan)
    hear(leader, worker)
    worker.shutdown()
    (gather,) = [found for found in read_trace(tmp_path / "run-dp1-rank3.json") if found.name == "gather"]
    assert gather.n_bytes == 3 * LAYOUT.payload_bytes
    assert not is_recording()


def test_a_trace_that_cannot_be_written_is_one_line_and_no_more(tmp_path, our_log):
    config = load_config({
        "tiers": {"host": {"capacity": 16 * LAYOUT.extent_bytes}},
        "runtime": {"trace_file": str(tmp_path / "none" / "run")},
    })  # fmt: skip
    worker = Worker(Setup(config, NAMESPACE, LAYOUT, PAGE, "e"))
    worker.register([torch.randn(16, 1, PAGE, 32) for _ in range(2)])
    worker.shutdown()
    (line,) = [record.getMessage() for record in our_log() if "trace" in record.getMessage()]
    assert line.startswith(f"tenuto: no trace at {tmp_path}/none/run-rank0.json (")


def test_a_worker_that_does_not_start_leaves_no_recorder():
    config = load_config({
        "tiers": {"host": {"capacity": 16 * LAYOUT.extent_bytes}}, "runtime": {"trace_file": "~nobody-here/run"},
    })  # fmt: skip
    worker = Worker(Setup(config, NAMESPACE, LAYOUT, PAGE, "e"))
    with pytest.raises(ConfigError, match=r"^runtime\.trace_file: "):
        worker.register([torch.randn(16, 1, PAGE, 32) for _ in range(2)])
    worker.shutdown()
    assert not is_recording()
