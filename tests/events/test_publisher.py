"""The publisher's rounds over a made-up way: order, loss, bounds, heartbeats, answers."""

import itertools
import threading
import time

import pytest

from tenuto import metrics
from tenuto.events import Batch, BlockShape, Kind, Part, Publisher, PublisherSettings, Source, decode
from tenuto.events.grouping import Lost
from tenuto.metrics import Recorder, series
from tenuto.pools.facts import Removed, Stored
from tests.events.events_rig import HOST, SHAPE, SOURCE, Clock, MadeUpWay, make_keys

pytestmark = pytest.mark.unit


def make(way, settings=None, snapshot=tuple, step_s=0.0):
    clock = Clock(step_s)
    return Publisher(way, SOURCE, SHAPE, snapshot, settings, clock), clock


def sent(way) -> list[Batch]:
    return [decode(payload) for payload in way.sent]


def stored(n: int, seed: int = 0) -> Stored:
    return Stored(HOST, make_keys(n, seed))


def question(publisher, way, first):
    """All of an answer."""
    asker = len(way.answers)
    way.answers[asker] = []
    from tenuto.events.ways import Question

    way.questions.append(Question(first, asker))
    for _ in range(20):
        publisher.turn()
    *messages, end = way.answers[asker]
    assert end is None
    return [decode(message) for message in messages]


def test_what_is_told_is_numbered_in_order():
    way = MadeUpWay()
    publisher, _ = make(way)
    publisher.publish([stored(3), Removed(HOST, make_keys(2))])
    publisher.publish([stored(1, 1)])
    publisher.turn()
    publisher.publish([stored(2, 2)])
    publisher.turn()
    assert [(batch.first, batch.n_events) for batch in sent(way)] == [(1, 6), (7, 2)]
    assert {batch.stream for batch in sent(way)} == {publisher.stream}
    assert sent(way)[0].source == SOURCE


def test_batches_are_cut_by_size():
    way = MadeUpWay()
    publisher, _ = make(way, PublisherSettings(batch_events=100))
    publisher.publish([stored(450)])
    publisher.turn()
    assert [batch.n_events for batch in sent(way)] == [100, 100, 100, 100, 50]


def test_it_waits_shorter_under_load_and_longer_when_little_is_told():
    way = MadeUpWay()
    publisher, _ = make(way, PublisherSettings(batch_events=10))

    def last_wait(n: int) -> float:
        """After twenty rounds with so many events each."""
        for seed in range(20):
            publisher.publish([stored(n, seed)])
            publisher.turn()
        return way.waits[-1]

    assert last_wait(50) == 0.002
    assert last_wait(1) == 0.05
    assert last_wait(0) == 0.05
    assert last_wait(50) == 0.002


def test_a_heartbeat_comes_soon_behind_a_batch_and_then_ever_later():
    way = MadeUpWay()
    publisher, clock = make(way, PublisherSettings(idle_s=1.0))
    publisher.publish([stored(2)])
    publisher.turn()
    beats = []
    for _ in range(800):
        clock.now += 0.01
        n_before = len(way.sent)
        publisher.turn()
        if len(way.sent) > n_before:
            beats.append(round(clock.now - 100, 2))
    assert all(batch.first == 3 and not batch.groups for batch in sent(way)[1:])
    gaps = [round(b - a, 1) for a, b in itertools.pairwise(beats)]
    assert gaps[:3] == [0.2, 0.4, 0.8]
    assert set(gaps[3:]) == {1.0}


def test_what_the_way_does_not_take_waits_and_is_sent_later():
    way = MadeUpWay()
    way.is_up = False
    publisher, clock = make(way)
    publisher.publish([stored(5)])
    for _ in range(3):
        clock.now += 20.0
        publisher.turn()
    assert publisher.n_behind == 5
    figures = publisher.read()
    assert figures[series(metrics.EVENT_LAG)] == 5
    assert figures[series(metrics.EVENT_LAG_SECONDS)] == pytest.approx(60.0)
    assert min(way.waits[1:]) > 0  # no spinning
    way.is_up = True
    publisher.turn()
    assert publisher.n_behind == 0
    assert publisher.read()[series(metrics.EVENT_LAG_SECONDS)] == 0
    assert [batch.first for batch in sent(way)] == [1]


def test_more_than_there_is_room_for_is_told_as_lost():
    way = MadeUpWay()
    publisher, _ = make(way, PublisherSettings(most_waiting=10))
    publisher.publish([stored(6)])
    publisher.publish([stored(5, 1)])
    publisher.publish([stored(7, 2)])
    publisher.publish([stored(4, 3)])
    publisher.turn()
    publisher.publish([stored(2, 4)])
    publisher.turn()
    kinds = [(group.kind, group.block_bytes if group.kind == Kind.LOST else group.n_events)
             for batch in sent(way) for group in batch.groups]  # fmt: skip
    assert kinds == [(0, 6), (3, 12), (0, 4), (0, 2)]
    assert publisher.read()[series(metrics.EVENTS_LOST)] == 12


def test_one_fact_is_taken_however_large_while_nothing_waits():
    way = MadeUpWay()
    publisher, _ = make(way, PublisherSettings(most_waiting=10))
    publisher.publish([stored(5000)])
    publisher.turn()
    assert sum(batch.n_events for batch in sent(way)) == 5000


def test_another_namespace_counts_from_its_place_in_the_order_on():
    way = MadeUpWay()
    publisher, _ = make(way)
    publisher.publish([stored(1)])
    publisher.rename(b"n" * 16)
    publisher.publish([stored(1, 1)])
    publisher.turn()
    assert [batch.source.namespace for batch in sent(way)] == [bytes(16), b"n" * 16]


def test_old_batches_are_told_again():
    way = MadeUpWay()
    publisher, _ = make(way, PublisherSettings(batch_events=2))
    publisher.publish([stored(6)])
    publisher.turn()
    assert [message.first for message in question(publisher, way, 4)] == [3, 5]
    assert question(publisher, way, 7) == []
    assert publisher.read()[series(metrics.EVENT_REPLAYS)] == 2


def test_a_snapshot_is_told_in_parts_when_old_batches_are_gone_or_it_is_asked_for():
    way, keys = MadeUpWay(), make_keys(5)
    publisher, _ = make(
        way, PublisherSettings(batch_events=2, history_bytes=300), lambda: iter([Stored(HOST, keys), Stored(HOST, ())])
    )
    publisher.publish([stored(20)])
    publisher.turn()
    for first in (1, 0, 99):
        parts = question(publisher, way, first)
        assert all(isinstance(part, Part) for part in parts)
        assert [(part.part, part.is_last) for part in parts] == [(0, False), (1, False), (2, True)]
        assert {part.as_of for part in parts} == {20}
        assert b"".join(group.hashes for part in parts for group in part.groups) == b"".join(key.hash for key in keys)
    assert publisher.read()[series(metrics.EVENT_SNAPSHOTS)] == 3


def test_a_snapshot_of_nothing_is_one_part():
    way = MadeUpWay()
    publisher, _ = make(way)
    (part,) = question(publisher, way, 0)
    assert (part.part, part.is_last, part.as_of, part.groups) == (0, True, 0, ())


def test_a_reader_that_is_slow_or_gone_holds_up_nobody():
    way = MadeUpWay()
    publisher, _ = make(way, PublisherSettings(batch_events=1))
    publisher.publish([stored(100)])
    publisher.turn()
    way.n_later = 5
    assert len(question(publisher, way, 1)) == 100
    way.gone.add(len(way.answers))
    with pytest.raises(ValueError, match="not enough values"):
        question(publisher, way, 1)
    assert len(publisher._answers) == 0


def test_readers_that_say_hello_are_told_where_the_stream_is():
    from tenuto.events.ways import Question

    way = MadeUpWay()
    publisher, _ = make(way)
    way.questions.append(Question(None))
    publisher.turn()
    assert [(batch.first, batch.groups) for batch in sent(way)] == [(1, ())]


def test_at_the_end_all_that_waits_is_sent():
    way = MadeUpWay()
    publisher = Publisher(way, SOURCE, SHAPE, tuple)
    publisher.start()
    for seed in range(50):
        publisher.publish([stored(100, seed)])
    publisher.close()
    assert sum(batch.n_events for batch in sent(way)) == 5000
    assert way.is_closed
    publisher.publish([stored(1)])  # nobody is there any more, and nothing happens


def test_the_end_does_not_wait_for_ever_for_a_broker():
    way = MadeUpWay()
    way.is_up = False
    publisher = Publisher(way, SOURCE, SHAPE, tuple)
    publisher.start()
    publisher.publish([stored(1)])
    began = time.monotonic()
    publisher.close(0.2)
    assert time.monotonic() - began < 1.0
    assert way.is_closed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_publisher_that_has_failed_costs_the_engine_nothing():
    class Broken(MadeUpWay):
        def send(self, batches):
            raise RuntimeError("a bug")

    way = Broken()
    publisher = Publisher(way, SOURCE, SHAPE, tuple)
    publisher.start()
    publisher.publish([stored(1)])
    publisher._thread.join(5.0)
    for seed in range(10):
        publisher.publish([stored(1, seed)])
    assert publisher.read()[series(metrics.EVENTS_LOST)] == 10
    assert not publisher._queue
    publisher.close()


def test_a_recorder_reads_the_figures():
    way, recorder = MadeUpWay(), Recorder()
    publisher, _ = make(way)
    recorder.watch(publisher.read)
    publisher.publish([stored(3)])
    publisher.turn()
    assert recorder.snapshot().flat()["events"] == 3
    assert recorder.snapshot().flat()["events.batches"] == 1


def test_many_facts_while_the_thread_works_are_told_once_each_and_in_order():
    way = MadeUpWay()
    publisher = Publisher(way, Source("n", "w", 0, bytes(16)), BlockShape(1, 1), tuple)
    publisher.start()
    keys = make_keys(20_000)
    teller = threading.Thread(target=lambda: [publisher.publish([Stored(HOST, (key,))]) for key in keys])
    teller.start()
    teller.join()
    publisher.close()
    hashes = b"".join(group.hashes for batch in sent(way) for group in batch.groups)
    assert hashes == b"".join(key.hash for key in keys)
    ends = [batch.first + batch.n_events for batch in sent(way)]
    assert [batch.first for batch in sent(way)] == [1, *ends[:-1]]


def test_what_is_lost_behind_facts_that_had_room_again_has_a_mark_of_its_own():
    way = MadeUpWay()
    publisher = Publisher(way, SOURCE, SHAPE, list, PublisherSettings(most_waiting=4))
    fact = [Stored(HOST, make_keys(3))]
    publisher.publish(fact)
    publisher.publish(fact)  # no room
    publisher.publish(fact)
    publisher._n_taken = publisher._n_told  # the other thread is about to take them
    publisher.publish(fact)
    publisher.publish(fact)  # no room
    waiting = [item for _, item, _ in publisher._queue]
    assert [isinstance(item, Lost) for item in waiting] == [False, True, False, True]
    assert [item.n_events for item in waiting if isinstance(item, Lost)] == [6, 3]
