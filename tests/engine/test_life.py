"""Requests come, are aborted, preempted, reset and failed at random, on both versions: nothing wrong, nothing left."""

import json

import pytest

from tests.engine.test_versions import run_python

pytestmark = pytest.mark.engine


def assert_eventful(counts):
    """That a life had all it is there for."""
    n = counts["requests"]
    at_least = {
        "finished": 0.7 * n, "with hits": 0.2 * n, "preempted": 0.1 * n, "pages.compared": n,
        "moved.host_to_device": 0.5 * n, "moved.disk_to_host": 0.2 * n, "moved.host_to_disk": n,
        "host.evictions": n, "disk.registered": 20, "resets.engine": 2, "resets.running": 2, "resets.loading": 1,
        "aborted.waiting": 1, "aborted.loading": 1, "aborted.running": 1, "aborted.finished": 1,
        "failed.disk_to_host.io_error": 1, "failed.disk_to_host.corrupt": 1, "failed.host_to_disk.no_space": 1,
        "late": 1,
    }  # fmt: skip
    counts["late"] = sum(counts.get(f"failed.{route}.timeout", 0) for route in ("host_to_device", "disk_to_device"))
    missed = {name: counts.get(name, 0) for name, least in at_least.items() if counts.get(name, 0) < least}
    assert not missed, missed


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("version", "n"), [("0.32.0", 150), ("0.27.1", 100)])
def test_a_random_life_leaves_only_right_answers(version, n):
    printed = run_python(version, "-m", "tests.engine.life", "--requests", str(n), "--seed", "1")
    counts = json.loads(printed.splitlines()[-1])
    assert counts["vllm"].startswith(version)
    assert_eventful(counts)
    assert counts["fds.grown"] <= 0
    assert counts["threads.grown"] <= 0
    assert counts["ours.grown_kib"] <= 256
    assert counts["left_in_tmp"] == 0
