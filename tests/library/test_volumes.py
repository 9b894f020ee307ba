"""Blocks that an advisor moves are found where they are, read right, and told of."""

import random

import pytest

from tenuto.pools.facts import TierKind
from tenuto.testing.nats_broker import free_port
from tenuto.tiers.agent.client import AgentClient, find_agents
from tests.events.reader import Reader, hear
from tests.library.library_rig import EXTENT, n_found, opened, prompt, store

pytestmark = pytest.mark.unit


def on_disk(cache):
    """The disk's blocks by volume, as the manager has them."""
    manager = cache._core.below.manager
    found: dict[str, set] = {}
    for key in manager.disk.registered(0, len(manager.disk)):
        found.setdefault(manager.told.volumes.get(key.hash, ""), set()).add(key.hash)
    return found


def check(cache):
    def compare(index):
        told = {place.volume: set(blocks) for place, blocks in index.places.items() if place.tier is TierKind.DISK}
        assert {volume: blocks for volume, blocks in told.items() if blocks} == on_disk(cache)

    return compare


def test_an_index_knows_the_volume_of_each_block_while_they_are_moved_read_and_lost(tmp_path):
    url = f"zmq://127.0.0.1:{free_port()}"
    options = {"n_host": 4, "events__url": url, "events__node": "here", "events__worker": "cache"}
    chance = random.Random(3)
    with opened(tmp_path / "home", **options) as cache:
        reader = Reader(url)
        for number in range(10):
            store(cache, prompt(number, 3))
        assert cache.flush()
        (path,) = find_agents(tmp_path / "home")
        with AgentClient(path) as agent:
            (tmp_path / "fast").mkdir()
            agent.register_volume("fast", str(tmp_path / "fast"), 400 * EXTENT)
            assert agent.describe().worker == "cache"
            for _ in range(12):
                blocks = sorted(set().union(*on_disk(cache).values()))
                chosen = chance.sample(blocks, 8)
                assert agent.move(chosen[:4], "fast").refused == ()
                agent.move(chosen[4:6], "")
                agent.drop(chosen[6:7])
                for number in chance.sample(range(10), 3):
                    if n_found(cache, prompt(number, 3)) < 3:
                        store(cache, prompt(number, 3))
                if chance.random() < 0.2:
                    agent.compact(chance.choice(["", "fast"]))
                assert cache.flush()
            assert set(on_disk(cache)) == {"", "fast"}
            held = {volume.name: volume.n_blocks for volume in agent.describe().volumes}
            assert {volume: len(blocks) for volume, blocks in on_disk(cache).items()} == held
        hear(reader, check(cache))
        before = on_disk(cache)
    with opened(tmp_path / "home", **options) as cache:
        assert cache.flush()
        assert on_disk(cache) == before
        hear(Reader(url), check(cache))
        assert sum(n_found(cache, prompt(number, 3)) for number in range(10)) >= 10
        with AgentClient(find_agents(tmp_path / "home")[0]) as agent:
            n_moved = agent.unregister_volume("fast").n_moved
        assert cache.flush()
        assert n_moved == len(before["fast"])
        assert on_disk(cache) == {"": before[""] | before["fast"]}
        hear(Reader(url), check(cache))
        cache._core.below.manager.check()
