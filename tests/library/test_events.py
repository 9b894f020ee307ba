"""A cache tells what becomes of its blocks, on the device too."""

import random

import pytest

from tenuto.errors import ConfigError
from tenuto.events import Index, Place
from tenuto.pools.facts import TierKind
from tenuto.testing.nats_broker import free_port
from tests.events.reader import Reader, hear
from tests.library.library_rig import TOKENS, n_found, opened, prompt, store

pytestmark = pytest.mark.unit


def truth(cache):
    manager = cache._core.below.manager
    pools = {TierKind.DEVICE: cache._core.pool, TierKind.HOST: manager.host, TierKind.DISK: manager.disk}
    return {tier: {key.hash for key in pool.registered(0, len(pool))} for tier, pool in pools.items()}


def check(cache):
    def compare(index: Index):
        for tier, blocks in truth(cache).items():
            assert set(index.places.get(Place("here", "cache", 0, tier), {})) == blocks, tier

    return compare


def test_an_index_of_its_events_is_what_it_holds(tmp_path):
    url = f"zmq://127.0.0.1:{free_port()}"
    events = {"events__url": url, "events__node": "here", "events__worker": "cache"}
    random.seed(0)
    reader = Reader(url)
    with opened(tmp_path, **events) as cache:
        for turn in range(60):
            tokens = prompt(random.randrange(12), random.randint(1, 4))
            if random.random() < 0.5:
                store(cache, tokens)
            else:
                n_found(cache, tokens)
            if turn == 30:
                cache.reset()
        assert cache.flush()
        counted = cache.statistics()["events"]
        assert all(truth(cache).values())
        hear(reader, check(cache))
        ending = Reader(url, reader.index)
        ending.wait()
    assert counted > 100
    hear(ending, check_ended)
    reader = Reader(url, ending.index)  # a new cache on the same disk takes the place of the old one
    with opened(tmp_path, **events) as cache:
        store(cache, prompt(99))
        assert cache.flush()
        hear(reader, check(cache))


def check_ended(index):
    assert {place.tier for place, blocks in index.places.items() if blocks} == {TierKind.DISK}  # memory is given up


def check_count(index):
    assert len(index) == 4  # two blocks, on the device and in host memory


def test_what_the_device_has_is_told_with_its_shape():
    url = f"zmq://127.0.0.1:{free_port()}"
    with opened(events__url=url) as cache:
        store(cache, prompt(1))
        reader = Reader(url)
        hear(reader, check_count)
        (source,) = reader.index.sources.values()
        assert source.worker.startswith("library-")
        assert source.namespace == cache._core._namespace.digest
        assert cache.layout.page_tokens == TOKENS


def test_without_a_url_nothing_is_told_nor_started():
    with opened() as cache:
        store(cache, prompt(1))
        assert cache._core.below.feed.publisher is None
        assert cache.statistics()["events"] == 0


def test_a_url_that_is_none_is_refused_before_anything_is_kept(tmp_path):
    with pytest.raises(ConfigError, match=r"events\.url: 'tcp://h:1' is no way"):
        opened(tmp_path, events__url="tcp://h:1")
    opened(tmp_path).close()
