"""Real ZeroMQ and a real NATS broker: brokers, publishers and readers die in the middle of events, and come back.

Afterwards the reader's index is exactly what the publisher's pools have. TENUTO_EVENTS=200000 makes the lives longer.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from tenuto.errors import ConfigError
from tenuto.events import Batch, Index, Place, Publisher, PublisherSettings, make_sender, parse_address, subscribe
from tenuto.manager import inventory
from tenuto.pools.facts import Stored, TierKind
from tenuto.testing.nats_broker import NatsBroker, free_port
from tests.events.events_rig import HOST, SHAPE, SOURCE, Life, check_index, make_keys
from tests.events.reader import CATCH_UP_S, Reader, hear

pytestmark = pytest.mark.adapter

N_EVENTS = int(os.environ.get("TENUTO_EVENTS", "20000"))


@pytest.fixture
def stopped_broker(tmp_path):
    pytest.importorskip("nats")
    try:
        return NatsBroker(tmp_path)
    except ConfigError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def broker(stopped_broker):
    with stopped_broker:
        yield stopped_broker


@pytest.fixture(params=["zmq", "nats", "jetstream"])
def url(request):
    if request.param == "zmq":
        return f"zmq://127.0.0.1:{free_port()}"
    broker = request.getfixturevalue("broker")
    return broker.url("kv.test", "TEST" if request.param == "jetstream" else "")


@pytest.fixture(params=["nats", "jetstream"])
def broker_url(request, broker):
    return broker.url("kv.test", "TEST" if request.param == "jetstream" else "")


@contextmanager
def published(url, life, settings=None):
    publisher = Publisher(
        make_sender(parse_address(url)), SOURCE, SHAPE, lambda: inventory({}, *life.tiers),
        settings or PublisherSettings(idle_s=0.5),
    )  # fmt: skip
    publisher.start()
    yield publisher
    publisher.close()


def live(life, publisher, n_events):
    """Events of a busy engine; not so fast that the machine's other tests stand still."""
    until = life.n_events + n_events
    told = life.n_events
    while life.n_events < until:
        publisher.publish(life.step())
        if life.n_events - told > 1000:
            told = life.n_events
            time.sleep(0.005)


def truth_of(life):
    return lambda index: check_index(index, SOURCE, *life.tiers)


def test_a_reader_has_what_the_pools_have(url):
    life = Life()
    with published(url, life) as publisher:
        reader = Reader(url)
        live(life, publisher, N_EVENTS // 2)
        hear(reader, truth_of(life))


def test_readers_that_die_and_come_back_change_nothing_for_the_publisher_and_catch_up(url):
    life = Life()
    # so little is kept that a new reader needs a snapshot, unless a broker has kept the rest
    with published(url, life, PublisherSettings(idle_s=0.5, history_bytes=100_000)) as publisher:
        for _ in range(3):
            reader = Reader(url)
            live(life, publisher, N_EVENTS // 4)
            reader.stop()
        last = Reader(url)
        live(life, publisher, N_EVENTS // 4)
        hear(last, truth_of(life))
        if "jetstream" not in url:
            assert last.n_snapshots > 0


def test_a_reader_that_sleeps_misses_messages_and_catches_up(url):
    life = Life()
    # more messages than anybody queues, and so little kept that what was missed is gone
    few = PublisherSettings(idle_s=0.5, batch_events=1, history_bytes=500_000)
    with published(url, life, few) as publisher, subscribe(url) as events:
        index, until = Index(), time.monotonic() + CATCH_UP_S
        live(life, publisher, 100)
        while not len(index) and time.monotonic() < until:
            if (message := events.next(0.1)) is not None:
                index.take(message)
        live(life, publisher, 40_000)
        while publisher.n_behind and time.monotonic() < until:
            time.sleep(0.02)
        until = time.monotonic() + CATCH_UP_S
        while time.monotonic() < until:
            if (message := events.next(0.3)) is not None:
                index.take(message)
                if not (isinstance(message, Batch) and not message.groups):
                    continue
                try:
                    check_index(index, SOURCE, *life.tiers)
                    break
                except AssertionError:
                    continue
        check_index(index, SOURCE, *life.tiers)


def test_a_broker_that_is_killed_costs_lag_alone(broker, broker_url):
    life = Life()
    with published(broker_url, life) as publisher:
        reader = Reader(broker_url)
        live(life, publisher, N_EVENTS // 3)
        broker.kill()
        live(life, publisher, N_EVENTS // 3)
        assert publisher.n_behind > 0
        broker.start()
        live(life, publisher, N_EVENTS // 3)
        hear(reader, truth_of(life))
        assert publisher.read()["tenuto_lost_events_total"] == 0
        assert publisher.n_behind == 0


def test_a_broker_that_comes_late_is_told_everything(stopped_broker):
    broker, life = stopped_broker, Life()
    with published(broker.url("kv"), life) as publisher:
        live(life, publisher, 3000)
        with broker:
            hear(Reader(broker.url("kv")), truth_of(life))


def spawn(url, seed):
    command = [sys.executable, "-m", "tests.events.publishing_child", url, str(seed), str(N_EVENTS)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_publisher_that_is_killed_and_started_again_takes_its_own_place(url):
    reader = Reader(url)
    first = spawn(url, 1)
    for line in first.stdout:
        if int(line.split()[1]) > N_EVENTS // 2:
            break
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = spawn(url, 2)
    try:
        truth = json.loads(last(second))

        def check(index):
            for tier, hashes in truth.items():
                believed = index.places.get(Place(*SOURCE.place, TierKind(tier)), {})
                assert {block.hex() for block in believed} == set(hashes)

        hear(reader, check)
    finally:
        second.communicate("\n", timeout=20)
    assert second.returncode == 0


def last(child):
    for line in child.stdout:
        if not line.startswith("at "):
            return line
    raise AssertionError("the publisher has ended")


def test_jetstream_tells_what_was_published_when_the_publisher_is_gone(broker):
    url, life = broker.url("kv", "KEPT"), Life()
    with published(url, life) as publisher:
        live(life, publisher, 5000)
    hear(Reader(url), truth_of(life))


def test_several_publishers_share_a_subject_and_each_keeps_its_place(broker):
    url = broker.url("kv")
    lives = [Life(seed=1), Life(seed=2)]
    sources = [SOURCE, type(SOURCE)("node", "worker", 1, bytes(16))]
    publishers = [
        Publisher(make_sender(parse_address(url)), source, SHAPE, lambda life=life: inventory({}, *life.tiers))
        for source, life in zip(sources, lives, strict=True)
    ]
    for publisher in publishers:
        publisher.start()
    reader = Reader(url)
    for _ in range(5):
        for life, publisher in zip(lives, publishers, strict=True):
            live(life, publisher, 500)

    def check(index):
        for life, source in zip(lives, sources, strict=True):
            check_index(index, source, *life.tiers)

    hear(reader, check)
    for publisher in publishers:
        publisher.close()


def test_all_ranks_of_zmq_are_followed_together():
    url, keys = f"zmq://127.0.0.1:{free_port() - 2}", make_keys(20)
    publishers = []
    for rank in range(2):
        sender = make_sender(parse_address(url).of_rank(rank))
        source = type(SOURCE)("node", "worker", rank, bytes(16))
        publishers.append(Publisher(sender, source, SHAPE, tuple))
        publishers[-1].start()
        publishers[-1].publish([Stored(HOST, keys[: 10 * (rank + 1)])])
    index, until = Index(), time.monotonic() + CATCH_UP_S
    with subscribe(url, n_ranks=2) as events:
        while len(index) < 30 and time.monotonic() < until:
            if (message := events.next(0.1)) is not None:
                index.take(message)
    assert {place.rank: len(blocks) for place, blocks in index.places.items()} == {0: 10, 1: 20}
    for publisher in publishers:
        publisher.close()


def test_a_port_that_is_taken_is_said_in_one_line():
    url = f"zmq://127.0.0.1:{free_port()}"
    with published(url, Life()), pytest.raises(ConfigError, match=r"events.url: can't listen at .* give another port"):
        Publisher(make_sender(parse_address(url)), SOURCE, SHAPE, tuple)


def test_nobody_there_is_no_error():
    for url in (f"zmq://127.0.0.1:{free_port()}", f"nats://127.0.0.1:{free_port()}/kv"):
        began = time.monotonic()
        with subscribe(url) as events:
            assert events.next(0.2) is None
        assert time.monotonic() - began < 5.0


def test_the_last_events_are_sent_before_the_publisher_ends(url):
    life = Life()
    reader = Reader(url)
    with published(url, life) as publisher:
        live(life, publisher, 1)
        reader.wait()
        live(life, publisher, 3000)
    hear(reader, truth_of(life))
