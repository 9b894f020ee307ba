"""What a cache says of itself is so: tokens asked and found, and whether all that was registered is kept."""

import shutil

import pytest

from tenuto.errors import Cause
from tenuto.tiers.store import Capacity, Failure
from tests.library.library_rig import EXTENT, TOKENS, n_found, opened, prompt, store

pytestmark = pytest.mark.unit


def tokens_of(cache):
    found = cache.statistics()
    return {key.removeprefix("tokens."): n for key, n in found.items() if key.startswith("tokens.") and n}


def n_told(our_log):
    return sum("its folder was removed: no other process will find" in record.getMessage() for record in our_log())


def test_tokens_are_counted_by_the_tier_that_had_them(tmp_path):
    with opened(tmp_path, n_host=8) as cache:
        store(cache, prompt(1))
        n_found(cache, [*prompt(1), 1])
        assert tokens_of(cache) == {"asked": 2 * TOKENS + 1, "engine": 2 * TOKENS}
        store(cache, prompt(2, 8))
        assert cache.statistics()["loads"] == 0
        n_found(cache, [*prompt(1), 5])
        n_found(cache, prompt(9))
        expected = {"asked": 6 * TOKENS + 2, "engine": 2 * TOKENS}
        assert tokens_of(cache) == expected | {"found.disk": 2 * TOKENS, "loaded.disk": 2 * TOKENS}
        assert cache.statistics()["loads"] == 1
    with opened(tmp_path) as cache:
        n_found(cache, prompt(1)[:TOKENS])
        store(cache, prompt(3, 8))
        n_found(cache, prompt(1))  # one is in host memory by now
        found = tokens_of(cache)
        assert (found["loaded.disk"], found["loaded.host"], found["asked"]) == (2 * TOKENS, TOKENS, 3 * TOKENS)
        assert cache.statistics()["loads"] == 2


def test_tokens_behind_a_damaged_block_are_counted_as_failed(tmp_path, monkeypatch):
    with opened(tmp_path) as cache:
        store(cache, prompt(1, 4))
    with opened(tmp_path) as cache:
        below = cache._core.below._store
        read = below.read
        spoilt = Failure(1, Cause.CORRUPT, "")
        monkeypatch.setattr(below, "read", lambda *given: [*read(*given), spoilt])
        assert n_found(cache, prompt(1, 4)) == 1
        assert tokens_of(cache) == {
            "asked": 4 * TOKENS, "found.disk": 4 * TOKENS, "loaded.disk": TOKENS, "failed.disk": 3 * TOKENS,
        }  # fmt: skip


def test_a_flush_is_false_where_a_write_has_failed_and_true_again_when_no_more_do(tmp_path, monkeypatch):
    with opened(tmp_path, runtime__retry_s=0.0) as cache:
        store(cache, prompt(1))
        assert cache.flush()
        below = cache._core.below._store
        with monkeypatch.context() as failing:
            failing.setattr(below, "write", lambda items: [Failure(0, Cause.IO_ERROR, "made up")])
            store(cache, prompt(2, 1))
            assert not cache.flush()
        assert cache.flush()
        store(cache, prompt(3))
        assert cache.flush()
        assert cache.statistics()["failed.host_to_disk.io_error"] == 1


@pytest.mark.parametrize("admission", ["all", "default"])
def test_a_flush_is_false_while_no_pool_file_can_be_had(tmp_path, monkeypatch, admission):
    """As where others have all of the capacity, or files can't grow."""
    monkeypatch.setattr("tenuto.tiers.disk.growth.Growth.capacity", lambda _: Capacity(0, False))
    with opened(tmp_path, tiers__disk__admission=admission) as cache:
        store(cache, prompt(1))
        assert not cache.flush()
        assert not cache.flush()
        assert n_found(cache, prompt(1)) == 2


def test_what_admission_keeps_from_a_disk_is_not_missed(tmp_path):
    with opened(tmp_path, tiers__disk__admission="frequency") as cache:
        store(cache, prompt(1))
        assert cache.flush()
        assert cache.statistics()["skipped.not_admitted"] == 2


def test_a_flush_and_the_end_say_that_the_disks_folder_was_removed(tmp_path, our_log):
    root = tmp_path / "root"
    with opened(root) as cache:
        store(cache, prompt(1))
        assert cache.flush()
        shutil.rmtree(root)
        assert not cache.flush()
        assert n_told(our_log) == 1
    assert n_told(our_log) == 2


def test_a_flush_is_false_while_the_disk_that_was_asked_for_is_off(tmp_path, monkeypatch):
    monkeypatch.setattr("tenuto.library.opening.open_tier", lambda *_: None)
    with opened(tmp_path) as cache:
        store(cache, prompt(1))
        assert not cache.flush()
        assert n_found(cache, prompt(1)) == 2


def test_without_a_disk_host_memory_is_where_blocks_are_kept():
    with opened(n_host=2) as cache:
        for number in range(1, 5):
            store(cache, prompt(number))
        assert cache.flush()
        assert cache.statistics()["host.capacity_bytes"] == EXTENT * 2
