"""A leader tells routers what its worker has: Dynamo's own indexer reads it, and finds the right worker and length."""

import re
import time
from pathlib import Path

import pytest
import zmq

from tenuto.connectors.session import Handshake, publish
from tenuto.errors import ConfigError
from tenuto.events.wire.vllm import AllBlocksCleared, BlockRemoved
from tenuto.testing.nats_broker import free_port
from tenuto.tiers.store import Capacity
from tenuto.tokens import HashChain
from tests.events.dynamo_indexer import DynamoIndexer
from tests.events.made_engine import MadeEngine, stored
from tests.session.session_rig import BLOCK, LAYOUT, NAMESPACE, PAGE, Rig, View

pytestmark = pytest.mark.adapter

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "events.md"
WORKER = 7
PROMPT = [100 + i for i in range(4 * BLOCK)]
OTHER = PROMPT[: 2 * BLOCK] + [500 + i for i in range(2 * BLOCK)]
PAGES = list(range(100, 100 + len(PROMPT) // PAGE))


@pytest.fixture(scope="module")
def dynamo():
    indexer = DynamoIndexer()
    yield indexer
    indexer.close()


@pytest.fixture
def start():
    """Starts leaders that tell routers, with these settings of events, and ends them."""
    rigs = []

    def start_one(url, settings=None, **more):
        rig = Rig(events={"router_url": url, "idle_s": 0.3} | (settings or {}), **more)
        publish(rig.leader)
        rigs.append(rig)
        return rig

    yield start_one
    for rig in rigs:
        rig.leader.feed.close()


@pytest.fixture
def url(dynamo):
    yield f"zmq://127.0.0.1:{free_port()}"
    if any(worker["instance_id"] == WORKER for worker in dynamo._call("/workers")):
        dynamo.unregister(WORKER)


def load(rig, tokens, name="again"):
    """A request that is found and loaded; the tokens it found."""
    view = View(name, tokens)
    n = rig.leader.lookup(view, 0)
    if n:
        rig.leader.admit(name, PAGES, n)
    rig.answer(rig.step((view, view.n_tokens)))
    rig.leader.finish(name)
    return n


def test_what_is_stored_evicted_and_reset_is_found_or_not(dynamo, start, url):
    rig = start(url, n_host=12, disk_slots=0)
    dynamo.register(WORKER, url, PAGE)
    rig.compute(View("a", PROMPT))
    dynamo.wait(PROMPT, {(WORKER, 0): len(PROMPT)})
    dynamo.wait(OTHER, {(WORKER, 0): 2 * BLOCK})
    rig.compute(View("s", PROMPT, salt="tenant"))
    dynamo.wait(PROMPT, {(WORKER, 0): len(PROMPT)}, cache_salt="tenant")
    host, names = rig.leader.manager.host, chain_of(rig, PROMPT).hashes
    lengths = []
    for number in range(4):  # other prompts take the slots
        rig.compute(View(f"b{number}", [1000 * (number + 1) + i for i in range(BLOCK)]))
        held = {key.hash for key in host.registered(0, len(host))}
        lengths.append(next((n for n, name in enumerate(names) if name not in held), 4))
        dynamo.wait(PROMPT, {(WORKER, 0): lengths[-1] * BLOCK} if lengths[-1] else {})
    assert len(set(lengths)) > 1
    rig.leader.reset()
    dynamo.wait([4000 + i for i in range(BLOCK)], {})
    rig.compute(View("c", PROMPT))
    dynamo.wait(PROMPT, {(WORKER, 0): len(PROMPT)})


def chain_of(rig, tokens):
    chain = HashChain(rig.leader._namespace.digest, BLOCK)
    chain.append(tokens)
    return chain


def test_a_started_worker_is_told_of_its_disk_when_a_request_has_asked(dynamo, start, url):
    rig = start(url)
    dynamo.register(WORKER, url, PAGE)
    rig.compute(View("a", PROMPT))
    rig.answer(rig.step())
    dynamo.wait(PROMPT, {(WORKER, 0): len(PROMPT)})
    disk = rig.leader.manager.disk
    keys = disk.registered(0, len(disk))
    assert len(keys) == 4
    rig.leader.feed.close()
    dynamo.wait(PROMPT, {})  # it has said that it ends
    dynamo.unregister(WORKER)
    url = f"zmq://127.0.0.1:{free_port()}"
    rig = start(url)
    capacity = Capacity(64, is_growing=False)
    shake = Handshake(0, LAYOUT.extent_bytes, NAMESPACE.digest, capacity, list(enumerate(keys)))
    rig.leader.connect({0: shake})
    dynamo.register(WORKER, url, PAGE)
    time.sleep(0.3)
    assert dynamo.find(PROMPT) == {}
    assert load(rig, OTHER) == 2 * BLOCK
    dynamo.wait(PROMPT, {(WORKER, 0): 2 * BLOCK})
    assert load(rig, PROMPT, "whole") == 4 * BLOCK
    dynamo.wait(PROMPT, {(WORKER, 0): len(PROMPT)})


def test_what_another_engine_has_is_told_when_it_is_here_too(dynamo, start, url):
    rig = start(url)
    chain = chain_of(rig, PROMPT)
    entries = [(index, chain.key(index)) for index in range(4)]
    capacity = Capacity(64, is_growing=False)
    rig.leader.connect({0: Handshake(0, LAYOUT.extent_bytes, NAMESPACE.digest, capacity, peers={"other": entries})})
    dynamo.register(WORKER, url, PAGE)
    time.sleep(0.2)
    assert dynamo.find(PROMPT) == {}
    assert load(rig, PROMPT) == len(PROMPT)
    dynamo.wait(PROMPT, {(WORKER, 0): len(PROMPT)})


def test_a_block_is_there_until_engine_and_tiers_have_lost_it(dynamo, start, url):
    port = free_port()
    engine = MadeEngine(port)
    rig = start(url, {"engine_url": f"zmq://127.0.0.1:{port}?replay={port + 1}"})
    engine.wait()
    dynamo.register(WORKER, url, PAGE)
    whole = [*PROMPT, *range(PAGE)]
    pages = stored(whole, PAGE)
    engine.tell(pages)
    dynamo.wait(whole, {(WORKER, 0): len(whole)})
    rig.compute(View("a", PROMPT))
    engine.tell(BlockRemoved(pages.block_hashes[:3], "GPU", 0), is_lost=True)
    engine.tell(BlockRemoved(pages.block_hashes[3:6], "GPU", 0))  # by its number it is known that one is missing
    time.sleep(0.2)
    assert dynamo.find(whole) == {(WORKER, 0): len(whole)}
    engine.tell(AllBlocksCleared())
    dynamo.wait(whole, {(WORKER, 0): len(PROMPT)})
    rig.leader.reset()
    dynamo.wait(whole, {})
    engine.tell(pages)
    dynamo.wait(whole, {(WORKER, 0): len(whole)})
    engine.close()


def test_what_a_reader_missed_it_asks_for(dynamo, start, url):
    rig = start(url, engine_index=0)
    rig.compute(View("a", PROMPT))  # before it is there
    dynamo.register(WORKER, url, PAGE)
    dynamo.wait(PROMPT, {(WORKER, 0): len(PROMPT)})  # by an empty message's number it sees what it missed


def test_ranks_of_data_parallelism_have_ports_of_their_own(dynamo, start, url):
    rigs = [start(url, engine_index=rank) for rank in range(2)]
    port = int(url.rpartition(":")[2])
    for rank in range(2):
        dynamo.register(WORKER, f"zmq://127.0.0.1:{port + 2 * rank}", PAGE, rank)
    rigs[1].compute(View("a", PROMPT))
    dynamo.wait(PROMPT, {(WORKER, 1): len(PROMPT)})
    rigs[0].compute(View("a", OTHER))
    dynamo.wait(PROMPT, {(WORKER, 0): 2 * BLOCK, (WORKER, 1): len(PROMPT)})


def test_tiers_are_told_apart_where_they_are_told_alone(dynamo, start, url):
    rig = start(url, {"router_schema": "vllm"}, disk_slots=0)
    dynamo.register(WORKER, url, BLOCK)
    rig.compute(View("a", PROMPT))
    until = time.monotonic() + 10
    while (found := dynamo.find_by_tier(PROMPT, WORKER)) != {"gpu": 0, "cpu": 4 * BLOCK, "disk": 4 * BLOCK}:
        assert time.monotonic() < until, found
        time.sleep(0.02)
    assert dynamo.find(PROMPT) == {}


def test_a_reader_that_is_dead_changes_nothing(dynamo, start, url):
    rig = start(url, n_host=200, disk_slots=0)
    dynamo.register(WORKER, url, PAGE)
    context = zmq.Context()
    port = int(url.rpartition(":")[2])
    reader = context.socket(zmq.SUB)  # it never takes a message
    reader.setsockopt(zmq.RCVHWM, 1)
    reader.setsockopt(zmq.SUBSCRIBE, b"")
    reader.connect(f"tcp://127.0.0.1:{port}")
    asker = context.socket(zmq.DEALER)  # it never hears an answer
    asker.connect(f"tcp://127.0.0.1:{port + 1}")
    prompts = [[1000 * number + i for i in range(2 * BLOCK)] for number in range(1, 60)]
    for number, prompt in enumerate(prompts):
        asker.send_multipart([b"", bytes(8)])
        asker.send_multipart([b"nonsense"])
        rig.compute(View(f"r{number}", prompt))
    context.destroy(0)
    for prompt in (prompts[0], prompts[-1]):
        dynamo.wait(prompt, {(WORKER, 0): 2 * BLOCK})
    assert rig.leader.statistics()["router.blocks"] == len(prompts) * 2 * BLOCK // PAGE


def test_what_is_wrong_is_said_in_one_line(start, url):
    start(url)
    with pytest.raises(ConfigError, match=r"^events\.router_url: can't listen at 127\.0\.0\.1:\d+ \(Address already"):
        start(url)
    for wrong, why in (
        (
            {"router_url": "nats://h:1/s"},
            r"^events\.router_url: 'nats://h:1/s' is no way that is known; give zmq://HOST",
        ),
        ({"engine_url": "tcp://*:5557"}, r"^events\.engine_url: 'tcp://\*:5557' is no way that is known; give zmq://H"),
    ):
        with pytest.raises(ConfigError, match=why):
            start(f"zmq://127.0.0.1:{free_port()}", wrong)


def test_the_guides_lines_show_what_is_told(start, url, capsys):
    (example,) = re.findall(r"^```python\n(import zmq\n.*?)^```$", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    port = url.rpartition(":")[2]
    start(url)  # an empty message is soon sent
    exec(example.replace("5560", port), {})
    assert re.fullmatch(r"\d+ 0 \[\]\n", capsys.readouterr().out)
