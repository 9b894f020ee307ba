"""Which blocks a cache keeps, where its user says so."""

import sys
from pathlib import Path

import pytest

import tenuto
from tenuto.errors import ConfigError, InvariantError, StateError
from tenuto.pools.policies import Priority
from tests.library.library_rig import LAYOUT, n_found, opened, prompt, settings, store

pytestmark = pytest.mark.unit


def flood(cache):
    for number in range(100, 120):
        store(cache, prompt(number))


@pytest.mark.parametrize("when", ["before it is registered", "while it is leased", "after it was released"])
@pytest.mark.parametrize("is_named", [True, False])
def test_what_is_preferred_stays_in_host_memory_whenever_that_was_said(when, is_named):
    policy = Priority()
    with opened(n_host=6, policies={"host": "priority" if is_named else policy}) as cache:
        prefer = cache.prefer if is_named else policy.prefer
        with cache.allocate(2) as blocks:
            blocks.apply(prompt(1))
            for block in range(2):
                for layer in range(LAYOUT.n_layers):
                    for outer in range(2):
                        blocks.view(block, layer, outer)[:] = float(prompt(1)[4 * block]) + layer / 8 + outer / 64
            hashes = blocks.hashes
            if when.startswith("before"):
                prefer(hashes, 90)
            with blocks.register() as read:
                assert read.hashes == hashes
                if when.startswith("while"):
                    prefer(hashes, 90)
        if when.startswith("after"):
            prefer(hashes, 90)
        flood(cache)
        assert n_found(cache, prompt(1)) == 2
        prefer(hashes, 10)
        flood(cache)
        assert n_found(cache, prompt(1)) == 0


def test_each_tier_has_the_policy_that_it_is_given(tmp_path):
    policies = {name: Priority() for name in ("device", "host", "disk")}
    with opened(tmp_path, policies=policies) as cache:
        below = cache._core.below.manager
        found = [pool._policy for pool in (cache._core.pool, below.host, below.disk)]
        assert found == list(policies.values())
    with opened(tiers__host__policy="slru") as cache:
        assert type(cache._core.below.manager.host._policy).__name__ == "SLRU"
        assert type(cache._core.pool._policy).__name__ == "LRU"


def test_without_such_a_policy_there_are_no_priorities(cache):
    with pytest.raises(StateError, match=r'^no tier\'s policy takes priorities; open the cache with policies={"host"'):
        cache.prefer([], 90)
    with opened(policies={"device": "priority"}) as other, pytest.raises(ValueError, match="is no hash"):
        other.prefer([7], 90)


@pytest.mark.parametrize("options", [{"policies": {"host": "moody:Moody"}}, {"tiers__host__policy": "moody:Moody"}])
def test_what_a_policy_of_others_raises_is_one_line_that_names_it(tmp_path, monkeypatch, options):
    fifo = (Path(__file__).resolve().parents[2] / "examples" / "fifo_policy.py").read_text("utf-8")
    moody = 'class Moody(Fifo):\n    def evict(self, n):\n        raise KeyError("not today")\n'
    (tmp_path / "moody.py").write_text(fifo.split("if __name__")[0] + moody)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "moody", raising=False)
    line = r"^moody:Moody: evict raised KeyError: 'not today'$"
    with opened(n_host=4, **options) as cache, pytest.raises(InvariantError, match=line):
        flood(cache)


ONE = Priority()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"policies": {"tape": "lru"}}, "policies: 'tape' is not known; give 'device', 'host', 'disk'"),
        ({"policies": {"disk": "lru"}}, "policies: there is no disk tier without tiers.disk.path"),
        ({"policies": "lru"}, "policies: 'lru' is no dict; give one"),
        ({"policies": {"host": ONE, "device": ONE}}, "policies: one object is given to 'host' and another"),
        (
            {"policies": {"host": "lru"}, "settings": {"tiers.host.policy": "slru"}},
            "policies: that of 'host' is given by tiers.host.policy too; leave one out",
        ),
        ({"settings": ["x"]}, "settings: ['x'] is no dict; give one"),
        ({"model": 3}, "model: 3 is no name; give printable text"),
    ],
)
def test_what_can_not_be_meant_is_one_line(options, line):
    with pytest.raises(ConfigError) as raised:
        tenuto.open_cache(LAYOUT, **{"model": "m", "settings": settings()} | options)
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("n_blocks", [0, -1, "2", 1.5, None])
def test_what_is_no_number_of_blocks_is_one_line(cache, n_blocks):
    with pytest.raises(ValueError, match=r"is no number of blocks to be filled; give a whole one of at least 1$"):
        cache.allocate(n_blocks)


def test_what_a_cache_raises_has_its_name_in_the_package():
    assert tenuto.Priority is Priority
    for name in ("TenutoError", "ConfigError", "FullError", "InvariantError", "LeaseError", "StateError"):
        assert getattr(tenuto, name).__name__ == name
    with pytest.raises(tenuto.FullError), opened() as cache:
        cache.allocate(9)


def test_a_cache_with_a_disk_that_is_dropped_without_being_closed_says_so(our_log, tmp_path):
    cache = opened(tmp_path)
    core = cache._core
    del cache
    assert [record.getMessage() for record in our_log()][-1].startswith("tenuto: a KVCache was not closed")
    core.close()
    opened(tmp_path).close()
    assert sum("not closed" in record.getMessage() for record in our_log()) == 1
