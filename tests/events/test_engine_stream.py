"""The engine's own stream of events, over ZeroMQ: in order, and where messages are missing."""

import time

import pytest
import zmq

from tenuto.errors import ConfigError
from tenuto.events.routers import EngineEndpoints, bound_endpoints, engine_endpoints
from tenuto.events.routers.enginestream import EngineStream
from tenuto.events.wire.vllm import AllBlocksCleared, BlockRemoved
from tenuto.testing.nats_broker import free_port
from tests.events.made_engine import MadeEngine

pytestmark = pytest.mark.adapter


class Rig:
    def __init__(self, keeps=True, has_replay=True):
        port = free_port()
        self.engine = MadeEngine(port, keeps=keeps)
        url = f"zmq://127.0.0.1:{port}" + f"?replay={port + 1}" * has_replay
        self.stream = EngineStream(engine_endpoints(url, 0))
        self.engine.wait()

    def tell(self, number, *, is_lost=False):
        self.engine.tell(BlockRemoved([number], "GPU", 0), is_lost=is_lost)

    def take(self, n):
        """`n` batches: a number for each, or None for a gap."""
        until, taken = time.monotonic() + 10.0, []
        while len(taken) < n:
            assert time.monotonic() < until, taken
            taken += [batch and batch.events[0].block_hashes[0] for batch in self.stream.take()]
        return taken


@pytest.fixture
def start():
    rigs = []

    def start_one(**settings):
        rigs.append(Rig(**settings))
        return rigs[-1]

    yield start_one
    for rig in rigs:
        rig.stream.close()
        rig.engine.close()


def test_messages_come_in_order(start):
    rig = start()
    for number in range(50):
        rig.tell(number)
    assert rig.take(50) == list(range(50))
    assert list(rig.stream.take()) == []


def test_what_was_missed_is_asked_for_at_the_beginning_and_later(start):
    rig = start()
    for number in range(20):
        rig.tell(number, is_lost=number in (0, 1, 7, 8, 9))
    assert rig.take(20) == list(range(20))


@pytest.mark.parametrize("settings", [{"keeps": False}, {"has_replay": False}])
def test_what_the_engine_can_not_give_again_is_a_gap(start, settings):
    rig = start(**settings)
    for number in range(6):
        rig.tell(number, is_lost=number in (2, 3))
    assert rig.take(5) == [0, 1, None, 4, 5]


def test_what_is_no_message_is_missing_and_said_once(start, our_log):
    rig = start(has_replay=False)
    rig.tell(0)
    for _ in range(2):
        rig.engine.messages.append(b"")
        rig.engine._publisher.send_multipart([b"", (len(rig.engine.messages) - 1).to_bytes(8, "big"), b"nonsense"])
    rig.tell(3)
    assert rig.take(3) == [0, None, 3]
    assert ["not a batch of vLLM's events" in record.getMessage() for record in our_log()] == [True]


def test_an_engine_that_comes_later_is_heard(start):
    port = free_port()
    stream = EngineStream(engine_endpoints(f"zmq://127.0.0.1:{port}", 0))
    assert list(stream.take()) == []
    engine = MadeEngine(port)
    engine.wait()
    engine.tell(AllBlocksCleared())
    until = time.monotonic() + 10.0
    while not (taken := list(stream.take())):
        assert time.monotonic() < until
    assert taken[0].events == [AllBlocksCleared()]
    stream.close()
    engine.close()


def test_inside_of_a_process_it_is_found_in_its_context():
    publisher = zmq.Context.instance().socket(zmq.XPUB)
    publisher.bind("inproc://events_dp1")
    stream = EngineStream(bound_endpoints("inproc://events", None, "", 1))
    assert publisher.poll(10_000)
    stream.close()
    publisher.close(0)
    assert not zmq.Context.instance().closed


@pytest.mark.parametrize(
    ("given", "rank", "expected"),
    [
        (("tcp://*:5557", None, ""), 0, ("tcp://127.0.0.1:5557", "", "")),
        (("tcp://*:5557", "tcp://*:6557", "kv"), 2, ("tcp://127.0.0.1:5559", "tcp://127.0.0.1:6559", "kv")),
        (("tcp://[::]:5557", "tcp://10.0.0.1:1", ""), 1, ("tcp://[::1]:5558", "tcp://10.0.0.1:2", "")),
        (("ipc:///tmp/e", "ipc:///tmp/r", ""), 0, ("ipc:///tmp/e", "ipc:///tmp/r", "")),
        (("inproc://e", "inproc://r", ""), 3, ("inproc://e_dp3", "inproc://r_dp3", "")),
    ],
)
def test_where_vllm_listens_is_where_we_connect(given, rank, expected):
    assert bound_endpoints(*given, rank) == EngineEndpoints(*expected)


@pytest.mark.parametrize("endpoint", ["tcp://10.0.0.1:5557", "tcp://*:0"])
def test_an_engine_that_listens_nowhere_is_refused(endpoint):
    with pytest.raises(
        ConfigError, match=r"^events\.engine_url: .*; give kv_events_config an endpoint as tcp://\*:5557"
    ):
        bound_endpoints(endpoint, None, "", 0)


def test_a_url_has_the_ports_of_its_rank():
    assert engine_endpoints("zmq://*:5557", 2) == EngineEndpoints("tcp://127.0.0.1:5559")
    whole = engine_endpoints("zmq://h:5557?replay=6557&topic=kv", 1)
    assert whole == EngineEndpoints("tcp://h:5558", "tcp://h:6558", "kv")
