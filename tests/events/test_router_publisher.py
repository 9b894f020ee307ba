"""Rounds of the publisher to routers over a made-up way: numbers, loss, bounds, empty messages, answers, its end."""

import itertools

import pytest

from tenuto.events.routers import RouterPublisher, RouterSettings
from tenuto.events.ways import Question
from tenuto.events.wire import read_batch, read_message
from tenuto.events.wire.schemas import WorkerSchema
from tenuto.events.wire.vllm import AllBlocksCleared, BlockRemoved, BlockStored
from tenuto.pools.facts import Cleared, Removed, Stored, TierKind
from tenuto.testing.blocks import make_blocks
from tests.events.events_rig import Clock, MadeUpWay

pytestmark = pytest.mark.unit

HOST = TierKind.HOST
BLOCK, PAGE = 4, 2


class NumberedWay(MadeUpWay):
    """Keeps the numbers, too."""

    def __init__(self):
        super().__init__()
        self.numbers = []
        self.answered = {}

    def send(self, batches):
        self.numbers += [number for number, _ in batches]
        return super().send(batches)

    def answer(self, asker, first, payload):
        self.answered.setdefault(asker, []).append(first)
        return super().answer(asker, first, payload)


class Rig:
    def __init__(self, inventory=tuple, **settings):
        self.way, self.clock = NumberedWay(), Clock(0.0)
        schema = WorkerSchema(BLOCK, PAGE)
        self.publisher = RouterPublisher(self.way, schema, 3, inventory, None, RouterSettings(**settings), self.clock)

    def turn(self):
        for _ in range(3):
            self.publisher.turn()

    def ask(self, first):
        """(numbers, names that a reader has then, whether it was told to forget all before)."""
        asker = len(self.way.answers)
        self.way.answers[asker] = []
        self.way.questions.append(Question(first, asker))
        self.turn()
        *messages, end = self.way.answers[asker]
        assert end is None
        names, is_clear = held(messages)
        return self.way.answered[asker][:-1], names, is_clear


def held(payloads):
    names, is_clear = set(), False
    for event in itertools.chain.from_iterable(read_batch(payload).events for payload in payloads):
        match event:
            case BlockStored():
                names |= set(event.block_hashes)
            case BlockRemoved():
                names -= set(event.block_hashes)
            case AllBlocksCleared():
                names, is_clear = set(), True
    return names, is_clear


def stored(seed, n=2):
    blocks = tuple(make_blocks(n, seed=seed, block_tokens=BLOCK))
    return Stored(HOST, tuple(block.key for block in blocks), blocks)


def test_messages_are_numbered_from_0_and_name_their_rank():
    rig = Rig()
    for seed in range(3):
        rig.publisher.publish([stored(seed)])
        rig.turn()
    assert rig.way.numbers == [0, 1, 2]
    assert {read_batch(payload).data_parallel_rank for payload in rig.way.sent} == {3}
    assert read_message([b"", (2).to_bytes(8, "big"), rig.way.sent[2]]).number == 2
    assert len(held(rig.way.sent)[0]) == 12


def test_what_comes_and_goes_between_two_rounds_is_not_told():
    rig = Rig()
    fact = stored(0)
    rig.publisher.publish([fact, Removed(HOST, fact.keys)])
    rig.turn()
    assert rig.way.sent == []


def test_messages_are_cut_by_blocks():
    rig = Rig(message_blocks=8)
    rig.publisher.publish([stored(seed) for seed in range(6)])
    rig.turn()
    assert [len(held([payload])[0]) for payload in rig.way.sent] == [8, 8, 8]


def test_an_empty_message_says_how_far_it_is_when_nothing_is_told():
    rig = Rig(idle_s=5.0)
    rig.publisher.publish([stored(0)])
    rig.turn()
    rig.clock.now += 4.9
    rig.turn()
    assert len(rig.way.sent) == 1
    rig.clock.now += 0.2
    rig.turn()
    assert rig.way.numbers == [0, 1]
    assert read_batch(rig.way.sent[1]).events == []


def test_a_reader_is_given_what_it_missed():
    rig = Rig()
    for seed in range(4):
        rig.publisher.publish([stored(seed)])
        rig.turn()
    whole, _ = held(rig.way.sent)
    assert rig.ask(0) == ([0, 1, 2, 3], whole, False)
    assert rig.ask(3) == ([3], held(rig.way.sent[3:])[0], False)
    assert rig.ask(4) == rig.ask(1 << 60) == ([], set(), False)


def test_where_that_is_gone_it_is_given_all_there_is():
    rig = Rig(history_bytes=600, message_blocks=8)
    facts = [stored(seed) for seed in range(12)]
    for fact in facts:
        rig.publisher.publish([fact])
        rig.turn()
    rig.publisher.publish([Removed(HOST, facts[0].keys)])
    rig.turn()
    whole, _ = held(rig.way.sent)
    numbers, names, is_clear = rig.ask(0)
    assert (names, is_clear) == (whole, True)
    assert numbers == list(range(13 - len(numbers), 13))  # up to the last that was told
    assert len(numbers) > 3
    assert rig.ask(12)[0] == [12]


def test_a_snapshot_is_of_the_moment_it_was_asked_for():
    rig = Rig(history_bytes=1, message_blocks=4)
    facts = [stored(seed) for seed in range(8)]
    rig.publisher.publish(facts)
    rig.turn()
    whole, _ = held(rig.way.sent)
    rig.way.answers[0] = []
    rig.way.questions.append(Question(0, 0))
    rig.publisher.publish([Cleared(HOST)])  # told in the same round, behind it
    rig.turn()
    assert held(rig.way.answers[0][:-1])[0] == whole
    assert rig.way.answered[0][:-1] == list(range(8))
    assert rig.way.numbers == list(range(9))
    assert held(rig.way.sent)[0] == set()


def test_more_than_there_is_room_for_is_made_good_from_the_pools():
    here = {}

    def store(fact):
        here.update((key.hash, key) for key in fact.keys)
        rig.publisher.publish([fact])

    def remove(fact):
        for key in fact.keys:
            del here[key.hash]
        rig.publisher.publish([Removed(HOST, fact.keys)])

    rig = Rig(lambda: [Stored(HOST, tuple(here.values()))], most_waiting=6)
    facts = [stored(seed) for seed in range(6)]
    for fact in facts[:3]:
        store(fact)
    remove(facts[0])  # no room
    rig.publisher.turn()
    assert len(held(rig.way.sent)[0]) == 8
    for fact in facts[3:]:
        store(fact)
    remove(facts[1])  # no room
    rig.publisher._n_taken += 2  # a moment later there is a bit
    store(facts[0])
    rig.publisher._n_taken -= 2
    remove(facts[0])  # no room again: this must not be told behind
    rig.turn()
    assert rig.publisher._n_marks == 3
    names, _ = held(rig.way.sent)
    assert len(names) == 4 * 4
    assert rig.publisher.read()["tenuto_router_lost_events_total"] == 6
    assert rig.publisher.read()["tenuto_router_blocks"] == 16


def test_what_has_no_room_is_looked_for_once_however_often_it_happens():
    looks = []
    rig = Rig(lambda: looks.append(1) or (), most_waiting=2)
    for seed in range(10):
        rig.publisher.publish([stored(seed, 3)])
        rig.publisher._n_taken += 3 * (seed % 2)
    rig.turn()
    assert len(looks) == 1


def test_at_its_end_a_worker_has_nothing():
    rig = Rig()
    rig.publisher.start()
    rig.publisher.publish([stored(0)])
    rig.publisher.close()
    assert held(rig.way.sent)[0] == set()
    assert rig.way.is_closed
    rig.publisher.publish([stored(1)])  # nobody reads that any more
    assert rig.publisher.read()["tenuto_router_lost_events_total"] == 2
