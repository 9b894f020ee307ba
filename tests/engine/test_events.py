"""A real engine's events: an index of them is what its tiers hold, and no reader changes what is served."""

import pytest

from tenuto.events import Place
from tenuto.pools.facts import TierKind
from tenuto.testing.nats_broker import free_port
from tests.engine.tiny import prompt
from tests.events.reader import Reader, hear

pytestmark = pytest.mark.engine


def check(engine):
    manager = engine.leader.manager

    def compare(index):
        for tier, pool in ((TierKind.HOST, manager.host), (TierKind.DISK, manager.disk)):
            truth = {key.hash: (key.parent, key.prefix) for key in pool.registered(0, len(pool))}
            assert truth
            assert index.places.get(Place("here", "worker", 0, tier), {}) == truth

    return compare


def run(engine, readers=None):
    """Prompts that share and come back, in host memory for ten blocks; what was generated."""
    outputs = []
    for turn in range(3):
        for seed in range(2, 7):
            outputs.append(engine.ask(prompt(1, 128) + prompt(seed, 150 + 40 * seed + 64 * turn))[1])
            engine.forget()
        if readers:
            readers.pop().stop()  # in the middle of it
    engine.settle()
    return outputs


def test_an_index_of_the_events_is_what_an_engine_holds_over_restarts_and_resets(start):
    small = {"tiers": {"host": {"capacity": "4 MiB"}, "disk": {"capacity": "16 MiB", "file_bytes": "4 MiB"}}}
    url = f"zmq://127.0.0.1:{free_port()}"
    told = small | {"events": {"url": url, "node": "here", "worker": "worker"}}
    engine = start(told)
    readers = [Reader(url) for _ in range(3)]
    kept = readers[0]
    outputs = run(engine, readers[1:])
    hear(kept, check(engine))
    assert engine.leader.statistics()["events"] > 30
    engine = start(told)  # finds its disk again, and is another stream
    reader = Reader(url, kept.index)
    assert run(engine) == outputs
    hear(reader, check(engine))
    reader = Reader(url)
    engine.leader.reset()
    engine.generate(prompt(1, 500))
    engine.settle()
    hear(reader, check(engine))
