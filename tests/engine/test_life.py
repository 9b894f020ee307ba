"""Requests come, are aborted, preempted, reset and failed at random, on both versions: nothing wrong, nothing left."""

import json
from types import SimpleNamespace

import pytest
import torch

from tenuto.memory.pages import PageRun
from tenuto.transfers.plan import Route
from tests.engine.life import Bytes
from tests.engine.life_births import births
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


def test_a_life_without_events_does_not_count():
    with pytest.raises(AssertionError, match=r"preempted.*0"):
        assert_eventful({"requests": 100, "finished": 100})


def test_a_life_notices_a_page_that_was_loaded_with_other_bytes():
    pages = torch.arange(4.0).reshape(4, 1)
    key = SimpleNamespace(hash=b"block")

    def move(route, page):
        return SimpleNamespace(keys=[key], pages=[PageRun((page,))], route=route)

    moves = iter([move(Route.DEVICE_TO_HOST, 1), move(Route.HOST_TO_DEVICE, 2), move(Route.HOST_TO_DEVICE, 3)])
    manager = SimpleNamespace(complete=lambda result: next(moves))
    paged = SimpleNamespace(_stacks=[pages])
    worker = SimpleNamespace(_movers=SimpleNamespace(_device=SimpleNamespace(_paged=paged)))
    seen = Bytes(SimpleNamespace(worker=worker, leader=SimpleNamespace(manager=manager)))
    pages[2] = pages[1]
    for _ in range(2):
        manager.complete(SimpleNamespace(failed=()))
    assert seen.n_compared == 1
    with pytest.raises(AssertionError, match="loaded other bytes"):
        manager.complete(SimpleNamespace(failed=()))


def test_the_same_seed_is_the_same_life_and_has_every_kind_of_request():
    requests = births(200, 7)
    assert requests == births(200, 7) != births(200, 8)
    lengths = {len(birth.tokens) for birth in requests}
    assert {1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 600} <= lengths
    assert {birth.doom for birth in requests} == {"", "waiting", "loading", "running", "finished"}
    for kind in ("salt", "wants_logprobs", "after_lull"):
        assert 0 < sum(bool(getattr(birth, kind)) for birth in requests) < 100
    assert any(birth.parent is not None for birth in requests)
