"""A leader publishes its facts: an index of them is what its pools hold."""

import random

import pytest

from tenuto.connectors.session import publish
from tenuto.events import Place
from tenuto.pools.facts import TierKind
from tenuto.testing.nats_broker import free_port
from tests.events.reader import Reader, hear
from tests.session.session_rig import BLOCK, Rig, View

pytestmark = pytest.mark.unit


def check(rig):
    def compare(index):
        for tier, pool in ((TierKind.HOST, rig.leader.manager.host), (TierKind.DISK, rig.leader.manager.disk)):
            truth = {key.hash for key in pool.registered(0, len(pool))}
            assert truth, "the test tests nothing"
            assert set(index.places.get(Place("here", "e", 1, tier), {})) == truth

    return compare


def test_what_steps_keep_and_lose_is_told():
    port = free_port() - 2
    rig = Rig(n_host=12, disk_slots=20, engine_index=1, events={"url": f"zmq://127.0.0.1:{port}", "node": "here"})
    publish(rig.leader)
    random.seed(1)
    reader = Reader(f"zmq://127.0.0.1:{port + 2}")
    for number in range(40):
        n_blocks = random.randint(1, 6)
        rig.compute(View(f"r{number}", [random.randrange(100) for _ in range(BLOCK * n_blocks)]))
        if number == 25:
            rig.leader.reset()
    rig.answer(rig.step())
    hear(reader, check(rig))
    assert reader.index.sources["here", "e", 1].namespace == rig.leader._namespace.digest
    assert rig.leader.statistics()["events"] > 100
    rig.leader.feed.close()
