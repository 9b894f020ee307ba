"""Requests come, are aborted, preempted, reset and failed at random, on both versions: nothing wrong, nothing left."""

import json
from types import SimpleNamespace

import pytest
import torch

from tenuto.errors import Cause
from tenuto.memory.arena import HostArena
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.memory.paged import ArenaView, PagedKV
from tenuto.memory.pages import PageRun
from tenuto.transfers.plan import BlockFailure, Route, Transfer, TransferResult
from tests.engine.life_births import births
from tests.engine.life_bytes import PageWitness
from tests.engine.test_versions import run_python
from tests.engine.tiny import BLOCK_TOKENS

pytestmark = pytest.mark.engine


def assert_eventful(counts):
    """That a life had all it is there for."""
    n = counts["requests"]
    at_least = {
        "finished": 0.7 * n, "with hits": 0.2 * n, "preempted": 0.1 * n, "pages.compared": n,
        "moved.host_to_device": 0.5 * n, "moved.disk_to_host": 0.2 * n, "moved.host_to_disk": n,
        "host.evictions": n, "resets.engine": 1, "resets.running": 1, "resets.loading": 1,
        "aborted.waiting": 1, "aborted.loading": 1, "aborted.running": 1, "aborted.finished": 1,
        "failed.disk_to_host.io_error": 1, "failed.disk_to_host.corrupt": 1, "failed.host_to_disk.no_space": 1,
        "late": 1,
    }  # fmt: skip
    counts["late"] = sum(counts.get(f"failed.{route}.timeout", 0) for route in ("host_to_device", "disk_to_device"))
    missed = {name: counts.get(name, 0) for name, least in at_least.items() if counts.get(name, 0) < least}
    assert not missed, missed


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("version", "n"), [("0.32.0", 100), ("0.27.1", 80)])
def test_a_random_life_leaves_only_right_answers(version, n):
    printed = run_python(version, "-m", "tests.engine.life", "--requests", str(n), "--seed", "1")
    counts = json.loads(printed.splitlines()[-1])
    assert counts["vllm"].startswith(version)
    assert_eventful(counts)
    assert counts["fds.grown"] <= 0
    assert counts["threads.grown"] <= 0
    assert counts["ours.grown_kib"] <= 256
    assert counts["left_in_tmp"] == 0


@pytest.mark.timeout(600)
def test_a_random_life_with_loads_and_stores_under_the_forward_leaves_only_right_answers():
    arguments = ("--requests", "15", "--seed", "1", "--onboard", "layered", "--save", "layers")
    counts = json.loads(run_python("0.32.0", "-m", "tests.engine.life", *arguments).splitlines()[-1])
    failed = [counts.get(f"failed.disk_to_host.{cause}", 0) for cause in ("io_error", "corrupt", "timeout")]
    assert min(counts["finished"], counts["pages.compared"], counts["moved.disk_to_host"], sum(failed)) > 10
    assert counts["with hits"] > 5
    assert counts["gathers"] > 50
    assert counts["fds.grown"] <= 0
    assert counts["threads.grown"] <= 0


def test_a_life_without_events_does_not_count():
    with pytest.raises(AssertionError, match=r"preempted.*0"):
        assert_eventful({"requests": 100, "finished": 100})


class MadeUpWorker:
    """Moves nothing; says what it is told to say. A block is two pages of the engine."""

    _layered = None

    def __init__(self):
        self.setup = SimpleNamespace(layout=ExtentLayout(4, (0, 2), (0, 1), 3, 3, Dtype.BFLOAT16), page_tokens=2)
        self.tensors = [torch.randn(6, 2, 1, 6, dtype=torch.bfloat16).transpose(1, 2) for _ in range(2)]
        self._arena = HostArena(3, self.setup.layout.extent_bytes)
        self._movers = SimpleNamespace(_arena=self._arena)
        self.results = []
        self.engine = SimpleNamespace(submit=lambda transfers: None, poll=lambda: self.results)

    def _running_engine(self):
        return self.engine

    def copy(self, pages, slot, *, is_load=False):
        """As a mover would."""
        paged = PagedKV(self.tensors, self.setup.layout, 2)
        arena = ArenaView(self._arena, self.setup.layout, torch.bfloat16)
        (paged.scatter if is_load else paged.gather)([PageRun(pages)], arena, [slot])

    def end(self, transfer, *failures):
        self.engine.submit([transfer])
        self.results = [TransferResult(transfer.id, failures)]
        self.engine.poll()


def make_transfer(number, route, pages, **slots):
    return Transfer(number, route, (SimpleNamespace(hash=b"block"),), pages=(PageRun(pages),) if pages else (), **slots)


@pytest.fixture
def worker():
    worker = MadeUpWorker()
    worker.witness = PageWitness(worker, worker.tensors)
    worker.copy((1, 3), 0)
    worker.end(make_transfer(1, Route.DEVICE_TO_HOST, (1, 3), targets=(0,)))
    assert worker.witness.n_staged == 2
    return worker


def test_a_witness_takes_what_was_stored_for_right(worker):
    worker.copy((1, 3), 1)
    worker.end(make_transfer(2, Route.DISK_TO_HOST, (), targets=(1,)))
    worker.copy((4, 0), 0, is_load=True)
    worker.end(make_transfer(3, Route.HOST_TO_DEVICE, (4, 0), sources=(0,)))
    worker.end(make_transfer(4, Route.DISK_TO_DEVICE, (4, 0), sources=(9,)))
    counts = {"pages.compared": 4, "pages.staged": 2, "pages.read": 2, "pages.wrong": 0}
    assert worker.witness.counts() == counts


def test_a_witness_notices_a_page_that_was_loaded_with_other_bytes(worker):
    worker.copy((4, 0), 0, is_load=True)
    worker.tensors[1][0, 0, 1, 5] += 1
    with pytest.raises(AssertionError, match=r"loaded other bytes into page 1 of block 0 than its slot has"):
        worker.end(make_transfer(3, Route.HOST_TO_DEVICE, (4, 0), sources=(0,)))
    with pytest.raises(AssertionError, match=r"page 1 of block 0 than were computed"):
        worker.end(make_transfer(4, Route.DISK_TO_DEVICE, (4, 0), sources=(9,)))


def test_a_witness_does_not_look_at_what_failed(worker):
    worker.end(make_transfer(3, Route.HOST_TO_DEVICE, (4, 0), sources=(0,)), BlockFailure(0, Cause.TIMEOUT))
    assert worker.witness.n_loaded == 0


def test_a_witness_notices_a_store_of_what_came_later(worker):
    store = make_transfer(2, Route.DEVICE_TO_HOST, (2, 5), targets=(1,))
    worker.engine.submit([store])
    worker.tensors[0][5] = 0
    worker.copy((2, 5), 1)
    worker.results = [TransferResult(2)]
    with pytest.raises(AssertionError, match=r"stored other bytes of page 1 of block 0"):
        worker.engine.poll()


def test_a_lenient_witness_counts_and_goes_on():
    worker = MadeUpWorker()
    witness = PageWitness(worker, worker.tensors, is_strict=False)
    worker.end(make_transfer(1, Route.DISK_TO_DEVICE, (1, 3), sources=(9,)))
    assert (witness.n_loaded, witness.n_wrong, len(witness.wrong)) == (2, 2, 2)


def test_the_same_seed_is_the_same_life_and_has_every_kind_of_request():
    requests = births(200, 7)
    assert requests == births(200, 7) != births(200, 8)
    lengths = {len(birth.tokens) for birth in requests}
    assert {1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 600} <= lengths
    assert {birth.doom for birth in requests} == {"", "waiting", "loading", "running", "finished"}
    for kind in ("salt", "wants_logprobs", "after_lull"):
        assert 0 < sum(bool(getattr(birth, kind)) for birth in requests) < 100
    assert any(birth.parent is not None for birth in requests)
