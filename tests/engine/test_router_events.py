"""A real engine's own events and ours, consolidated, in Dynamo's own tree: it finds what the engine then has."""

import struct

import pytest

from tenuto.events.consolidator import Consolidator
from tenuto.events.wire import encode_events, read_message
from tenuto.testing.nats_broker import free_port
from tests.engine.tiny import BLOCK_TOKENS, PAGE_TOKENS, prompt
from tests.events.dynamo_indexer import DynamoIndexer

pytestmark = pytest.mark.engine

EVENTS, REPLAY = "inproc://engine-events", "inproc://engine-events-replay"
WORKER = 4


class Router:
    """Reads both sources as a worker's consolidator would, and keeps Dynamo's tree."""

    def __init__(self, dynamo, engine):
        self.dynamo, self.engine = dynamo, engine
        self.tree, self.consolidator = dynamo.RadixTree(), Consolidator(BLOCK_TOKENS, PAGE_TOKENS)
        self.facts, self.next_message = [], 0
        engine.leader.feed.publisher = self

    # As a publisher of the leader's facts.

    def publish(self, facts):
        self.facts += facts

    def rename(self, namespace):
        pass

    def close(self):
        pass

    def messages(self):
        """vLLM's messages since the last call, by its replay."""
        import zmq

        self.engine.scheduler.kv_event_publisher._event_queue.join()
        asked = zmq.Context.instance().socket(zmq.DEALER)
        asked.connect(REPLAY)
        asked.send_multipart([b"", struct.pack(">q", self.next_message)])
        messages = []
        while True:
            assert asked.poll(10_000)
            message = read_message(asked.recv_multipart())
            if message is None:
                break
            messages.append(message)
        asked.close(linger=0)
        return messages

    def catch_up(self):
        self.engine.settle()
        self.engine.leader.feed()
        events, facts = [], self.facts[:]
        self.facts.clear()
        for message in self.messages():
            assert message.number == self.next_message
            self.next_message += 1
            events += self.consolidator.take_engine(message.batch)
        events += self.consolidator.take_facts(facts)
        self.consolidator.check()
        for event in encode_events(events):
            self.tree.apply_event(WORKER, event)

    def forgotten(self, *, tiers=False):
        """Empty the engine's own cache, and ours with `tiers`; the engine tells of it with its next step."""
        assert self.engine.scheduler.reset_prefix_cache(reset_connector=tiers)
        self.engine.ask(prompt(3, PAGE_TOKENS // 2), n_tokens=1)

    def tokens_of(self, ids):
        """Tokens that the tree finds on the worker."""
        self.catch_up()
        hashes = self.dynamo.compute_block_hash_for_seq(ids, PAGE_TOKENS)
        return self.tree.find_matches(hashes).scores.get((WORKER, 0), 0) * PAGE_TOKENS


@pytest.fixture
def indexer():
    indexer = DynamoIndexer()
    yield indexer
    indexer.close()


def test_the_routers_tree_knows_what_the_engine_and_the_tiers_have(start, dynamo, indexer):
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": EVENTS, "replay_endpoint": REPLAY}
    url = f"zmq://127.0.0.1:{free_port()}"
    engine = start({"events": {"router_url": url, "idle_s": 0.2}}, kv_events_config=config)
    indexer.register(WORKER, url, PAGE_TOKENS)
    router = Router(dynamo, engine)
    ids = prompt(1, 300)
    other = ids[:160] + prompt(2, 100)

    def check(*expected):
        """By Dynamo's tree here, and by its indexer, which reads what is published."""
        assert (router.tokens_of(ids), router.tokens_of(other)) == expected
        for tokens, n in zip((ids, other), expected, strict=True):
            indexer.wait(tokens, {(WORKER, 0): n} if n else {})

    check(0, 0)
    engine.ask(ids)
    engine.ask(other)
    check(288, 256)  # on the device, by pages
    router.forgotten()
    check(256, 256)  # in our tiers, by blocks
    assert engine.ask(ids)[0] == 256
    check(288, 256)
    router.forgotten(tiers=True)
    check(0, 0)
    engine.ask(ids)
    check(288, 160)
    engine.leader.feed.router.close()
    engine.leader.feed.router = None
    indexer.wait(ids, {})
