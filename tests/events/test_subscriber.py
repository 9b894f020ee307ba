"""A reader over a made-up way: gaps, replay, snapshots, publishers that are started again."""

from contextlib import suppress
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import EventsError
from tenuto.events import Batch, Index, Place, PublisherSettings, Source, Subscription, decode
from tenuto.pools import Pool
from tenuto.pools.facts import Cleared, Removed, Stored
from tests.events.events_rig import DISK, HOST, SOURCE, Clock, Life, Told, make_keys

pytestmark = pytest.mark.unit


@pytest.fixture
def life():
    return Life(64, 128)


def live(life, told, n):
    for _ in range(n):
        told.publisher.publish(life.step())
        told.publisher.turn()


def test_the_index_is_what_the_pools_have(life):
    told = Told(*life.tiers)
    live(life, told, 200)
    told.settle()
    told.check()
    assert told.subscription.n_gaps == 0


@pytest.mark.parametrize("n_blocks", [10_000, pytest.param(100_000, marks=pytest.mark.scale)])
def test_a_long_life_in_four_tiers_is_told_as_it_was(n_blocks):
    tenth = n_blocks // 10
    life = Life(2 * tenth, 6 * tenth, seed=3, device=tenth, object=tenth)
    told = Told(*life.tiers, settings=PublisherSettings(history_bytes=2 * n_blocks, most_waiting=400))
    random = Random(4)
    n_steps = 9 * tenth // 10
    for step in range(n_steps):
        told.publisher.publish(life.step())
        if random.random() < 0.1:
            told.way.n_to_lose += random.choice((0, 0, 0, 1, 3))
            told.publisher.turn()
            if (message := told.subscription.next(0.0)) is not None:
                told.index.take(message)
        if step % (n_steps // 6) == 0:
            told.settle()
            told.check()
    told.settle()
    told.check()
    assert len(told.index) > 5 * tenth
    assert life.n_events > n_blocks
    figures = told.publisher.read()
    assert figures["tenuto_event_replays_total"] > 3
    assert figures["tenuto_event_snapshots_total"] > 3


def test_messages_that_were_lost_are_asked_for(life):
    told = Told(*life.tiers)
    live(life, told, 20)
    told.settle()
    told.way.n_to_lose = 7
    live(life, told, 50)
    told.settle()
    told.check()
    assert told.subscription.n_gaps == 1
    assert told.subscription.n_snapshots == 0


def test_what_is_not_kept_any_more_comes_as_a_snapshot(life):
    told = Told(*life.tiers, settings=PublisherSettings(history_bytes=5000))
    live(life, told, 20)
    told.settle()
    told.way.n_to_lose = 30
    live(life, told, 100)
    told.settle()
    told.check()
    assert told.subscription.n_snapshots > 0


def test_what_the_publisher_had_no_room_for_comes_as_a_snapshot(life):
    told = Told(*life.tiers, settings=PublisherSettings(most_waiting=50))
    for _ in range(100):
        told.publisher.publish(life.step())
    told.settle()
    told.check()
    assert told.subscription.n_snapshots == 1


def test_a_reader_that_comes_late_has_all_of_it(life):
    told = Told(*life.tiers)
    live(life, told, 100)
    told.way.arrived.clear()
    told.settle()
    told.check()
    assert told.subscription.n_gaps == 0


@pytest.mark.parametrize("is_late", [False, True])
def test_what_is_missed_once_is_one_gap_however_often_it_is_asked_for(life, is_late):
    told = Told(*life.tiers)
    live(life, told, 20)
    if is_late:
        told.way.arrived.clear()
    told.settle()
    for n_gaps in (1, 2):
        told.way.publisher, told.way.n_to_lose = None, 3
        live(life, told, 20)
        for _ in range(30):
            assert told.subscription.next(0.0) is None
        assert told.subscription.n_gaps == n_gaps
        told.way.publisher = told.publisher
        told.settle()
        told.check()
        assert told.subscription.n_gaps == n_gaps


def test_a_publisher_that_is_new_to_a_reader_is_no_gap(life):
    told = Told(*life.tiers)
    told.settle()
    told.begin()
    live(life, told, 20)
    told.way.arrived.clear()
    told.settle()
    told.check()
    assert told.subscription.n_gaps == 0


def test_a_reader_knows_who_has_answered():
    told = Told()
    told.way.is_up = False
    assert told.subscription.next(0.0) is None
    assert told.subscription.n_answering == 0
    told.way.is_up = True
    for _ in range(9):
        told.subscription.next(0.0)
    assert told.subscription.n_answering == 1


def test_the_last_message_lost_is_found_by_the_next_heartbeat(life):
    told = Told(*life.tiers)
    live(life, told, 10)
    told.settle()
    told.way.n_to_lose = 1
    live(life, told, 1)
    told.settle()
    told.check()


def test_messages_that_come_twice_or_in_part_change_nothing(life):
    told = Told(*life.tiers)
    told.settle()
    live(life, told, 30)
    told.way.arrived.extend(list(told.way.sent) * 2)
    told.settle()
    told.check()


def test_a_publisher_that_is_started_again_takes_the_place_of_the_one_before():
    first, second = Life(64, 128, seed=1), Life(64, 128, seed=2)
    told = Told(*first.tiers)
    live(first, told, 50)
    told.settle()
    told.check()
    late = told.way.sent[-1]
    told.tiers = second.tiers
    told.begin()
    live(second, told, 50)
    told.way.arrived.append(late)  # of the dead one
    told.settle()
    told.check()


def test_nothing_is_taken_in_behind_a_gap_while_nobody_answers():
    told = Told()
    told.settle()
    keys = make_keys(9)
    told.way.publisher = None
    told.publisher.publish([Stored(HOST, keys[:3])])
    told.publisher.turn()
    told.way.n_to_lose = 1
    told.publisher.publish([Removed(HOST, keys[:3])])
    told.publisher.turn()
    told.publisher.publish([Stored(HOST, keys[3:6])])
    told.publisher.turn()
    for _ in range(10):
        while (message := told.subscription.next(0.0)) is not None:
            told.index.take(message)
    assert set(told.index.places[Place("node", "worker", 0, HOST)]) == {key.hash for key in keys[:3]}
    told.way.publisher = told.publisher
    told.settle()
    assert set(told.index.places[Place("node", "worker", 0, HOST)]) == {key.hash for key in keys[3:6]}


def test_noise_is_left_out(life, our_log):
    told = Told(*life.tiers)
    told.way.arrived.extend([b"noise", b"\x91\x01"])
    live(life, told, 10)
    told.settle()
    told.check()
    assert sum("not understood" in record.getMessage() for record in our_log()) == 1


class Saying:
    """A way that has these messages for all, and answers every question with them."""

    def __init__(self, *messages):
        self.messages = list(messages)

    def receive(self, timeout_s):
        return self.messages.pop(0) if self.messages else None

    def ask(self, stream, first, timeout_s):
        assert 0 <= first < 2**63
        yield from self.messages

    def close(self):
        pass


WHOLE = st.integers(-(2**63), 2**64 - 1) | st.integers(-1, 5)
COLUMN = st.sampled_from([b"", bytes(16), bytes(32), bytes(7)])
DEEP = msgspec.Raw(b"\x91" * 5000 + b"\xc0")
MORE = st.lists(st.sampled_from([DEEP, None, "more", {}]), max_size=1)
GROUP = st.builds(
    lambda kind, tier, size, columns, more: [kind, tier, "v", size, size, size, "", {}, *columns, *more],
    WHOLE, WHOLE, WHOLE, st.lists(COLUMN, min_size=3, max_size=3) | COLUMN.map(lambda column: [column] * 3), MORE,
)  # fmt: skip
MESSAGE = st.builds(
    lambda tag, first, two, rank, groups, more: [tag, b"8 bytes.", first, *two, ["n", "w", rank, b""], groups, *more],
    st.integers(1, 2), WHOLE, WHOLE.map(lambda ms: [ms]) | st.tuples(WHOLE, st.booleans()), WHOLE, st.lists(GROUP),
    MORE,
)  # fmt: skip


@given(st.lists(MESSAGE, max_size=4))
def test_no_bytes_bring_out_more_than_messages_that_can_be_taken_in(raws):
    datas = [msgspec.msgpack.encode(raw) for raw in raws]
    for data in datas:
        with suppress(EventsError):
            decode(data)
    subscription, index = Subscription([Saying(*datas)], Clock()), Index()
    for _ in range(30):
        message = subscription.next(0.0)
        if message is not None:
            index.take(message)
            assert not isinstance(message, Batch) or len(list(message.events())) <= message.n_events
    assert len(index) <= 8


# -- the index alone --------------------------------------------------------------------------------


def taken(*facts, source=SOURCE) -> Index:
    told = Told()
    told.begin(source)
    told.publisher.publish(list(facts))
    told.settle()
    return told.index


def test_the_index_finds_who_has_a_block_and_the_longest_run():
    keys = make_keys(5)
    index = taken(Stored(HOST, keys[:2]), Stored(DISK, keys[1:4]))
    other = Told()
    other.index = index
    other.begin(Source("far", "worker", 1, bytes(16)))
    other.publisher.publish([Stored(HOST, keys[:1])])
    other.settle()
    hashes = [key.hash for key in keys]
    assert index.longest(hashes) == {("node", "worker", 0): 4, ("far", "worker", 1): 1}
    assert index.longest(hashes[4:]) == {}
    assert {place.tier for place in index.holders(hashes[1])} == {HOST, DISK}
    assert len(index) == 6
    index.forget(("node", "worker", 0))
    assert index.longest(hashes) == {("far", "worker", 1): 1}


def test_workers_that_are_silent_can_be_forgotten():
    index = taken(Stored(HOST, make_keys(3)))
    heard_s = index.heard_ms["node", "worker", 0] / 1000
    assert index.forget_silent(30.0, heard_s + 29.0) == []
    assert len(index) == 3
    assert index.forget_silent(30.0, heard_s + 31.0) == [("node", "worker", 0)]
    assert (len(index), index.sources, index.heard_ms) == (0, {}, {})


def test_volumes_are_places_of_their_own():
    keys = make_keys(4)
    index = taken(
        Stored(DISK, keys[:2], volume="fast"), Stored(DISK, keys[2:], volume="slow"),
        Removed(DISK, keys[:1], volume="fast"), Cleared(DISK, volume="slow"),
    )  # fmt: skip
    assert {place.volume: set(blocks) for place, blocks in index.places.items()} == {"fast": {keys[1].hash}}


def test_events_are_made_when_somebody_asks(life):
    told = Told(*life.tiers)
    live(life, told, 5)
    numbers = []
    while (message := told.subscription.next(0.0)) is not None:
        assert isinstance(message, Batch)
        numbers += [event.number for event in message.events()]
    assert numbers == list(range(1, life.n_events + 1))


def test_a_snapshot_reads_pools_in_chunks_while_they_change():
    pool = Pool("host", 5000)
    answer = pool.allocate(5000)
    keys = make_keys(5000)
    pool.apply(answer.lease, keys)
    pool.register(answer.lease).lease.release()
    told = Told((HOST, pool), settings=PublisherSettings(history_bytes=1))
    told.publisher.publish([Stored(HOST, keys)])
    told.publisher.turn()
    held, taken_from = pool.registered, []

    def changing(start, stop):
        """Between two chunks some blocks go, and others take their slots."""
        found = held(start, stop)
        taken_from.append(start)
        gone = tuple(pool.invalidate([key.hash for key in keys[len(taken_from) * 700 : len(taken_from) * 700 + 50]]))
        told.publisher.publish([Removed(HOST, gone)])
        new = make_keys(50, seed=len(taken_from))
        lease = pool.allocate(50).lease
        pool.apply(lease, new)
        pool.register(lease).lease.release()
        told.publisher.publish([Stored(HOST, new)])
        return found

    pool.registered = changing
    told.way.arrived.clear()
    for _ in range(50):
        told.publisher.turn()
        message = told.subscription.next(0.0)
        if message is not None:
            told.index.take(message)
        if len(taken_from) >= 5:
            break
    pool.registered = held
    told.settle()
    told.check()
    assert len(taken_from) == 5
