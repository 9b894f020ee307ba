"""Where events go: URLs, and one clear line for those that are none."""

import sys

import pytest

from tenuto.errors import ConfigError
from tenuto.events import make_sender, parse_address
from tenuto.events.ways import Address, make_receiver

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("zmq://127.0.0.1:5557", Address("zmq", "127.0.0.1", 5557, 5558)),
        ("zmq://*:5557", Address("zmq", "*", 5557, 5558)),
        ("zmq://[::1]:5557?replay=6000", Address("zmq", "[::1]", 5557, 6000)),
        ("nats://broker:4222/kv.events", Address("nats", "broker", 4222, subject="kv.events")),
        ("nats://me:pw@b:1/kv?jetstream=KV", Address("nats", "b", 1, subject="kv", jetstream="KV", login="me:pw")),
    ],
)
def test_the_parts_of_a_url(url, address):
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "is no way that is known"),
        ("tcp://h:1", "is no way that is known"),
        ("zmq://h", "has no host and port"),
        ("zmq://:5557", "has no host and port"),
        ("zmq://h:0", "has no host and port"),
        ("zmq://h:65535", "has no host and port"),
        ("zmq://h:99999", "is no address"),
        ("zmq://h:1/path", "more than a host and a port"),
        ("zmq://me:pw@h:1", "more than a host and a port"),
        ("zmq://h:1?replay=x", "is no port"),
        ("zmq://h:1?reply=2", "unknown option reply"),
        ("nats://h:1", "no subject"),
        ("nats://h:1/a..b", "no subject"),
        ("nats://h:1/a.*", "no subject"),
        ("nats://h:1/a?jetstream=", "no name of a JetStream stream"),
        ("nats://h:1/a?jetstream=a.b", "no name of a JetStream stream"),
    ],
)
def test_what_is_no_address_is_said_in_one_line(url, why):
    with pytest.raises(ConfigError, match=why) as refused:
        parse_address(url)
    text = str(refused.value)
    assert text.startswith("events.url: ")
    assert "\n" not in text
    assert ":pw@" not in text


def test_ranks_take_ports_of_their_own_with_zmq_and_none_with_nats():
    ports = [(a.port, a.replay_port) for a in (parse_address("zmq://h:5557").of_rank(rank) for rank in range(3))]
    assert ports == [(5557, 5558), (5559, 5560), (5561, 5562)]
    ports = [parse_address("zmq://h:5557?replay=6000").of_rank(rank) for rank in range(3)]
    assert [(a.port, a.replay_port) for a in ports] == [(5557, 6000), (5558, 6001), (5559, 6002)]
    nats = parse_address("nats://h:1/kv")
    assert nats.of_rank(3) == nats
    with pytest.raises(ConfigError, match="no port is left for rank 40"):
        parse_address("zmq://h:65500").of_rank(40)


@pytest.mark.parametrize(("url", "package"), [("zmq://127.0.0.1:5557", "zmq"), ("nats://127.0.0.1:1/a", "nats")])
@pytest.mark.parametrize("make", [make_sender, make_receiver])
def test_a_library_that_is_missing_is_said_in_one_line(monkeypatch, url, package, make):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"events.url: .* is not installed; install tenuto\[events\]"):
        make(parse_address(url))
