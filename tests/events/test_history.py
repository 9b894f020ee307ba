"""Encoded batches: what is to be sent, and what can be sent again."""

import pytest

from tenuto.events.history import History

pytestmark = pytest.mark.unit


def filled(n: int, most_bytes: int = 1000) -> History:
    """`n` batches of two events and ten bytes."""
    history = History(most_bytes)
    for i in range(n):
        history.add(bytes([i % 256]) * 10, 2, float(i))
    return history


def firsts(entries) -> list[int]:
    return [entry.first for entry in entries]


def test_batches_are_sent_in_order_and_once():
    history = filled(5)
    assert firsts(history.unsent(2, 1000)) == [1, 3]
    assert firsts(history.unsent(10, 25)) == [1, 3]
    assert firsts(history.unsent(10, 1)) == [1]
    history.mark_sent(3)
    assert firsts(history.unsent(10, 1000)) == [7, 9]
    assert history.oldest_unsent.told_at == 3.0
    history.mark_sent(2)
    assert history.oldest_unsent is None
    assert history.end == 11


def test_a_reader_is_given_the_batch_that_holds_its_number_and_all_behind():
    history = filled(5)
    assert firsts(history.since(1)) == [1, 3, 5, 7, 9]
    assert firsts(history.since(6)) == [5, 7, 9]
    assert firsts(history.since(11)) == []
    assert history.since(12) is None
    assert History(10).since(1) is not None


def test_old_batches_make_room_though_they_were_not_sent():
    history = filled(150)
    assert history.since(1) is None
    assert firsts(history.since(101))[0] == 101
    assert firsts(history.unsent(1, 1000)) == [101]
    history.mark_sent(1)
    assert firsts(history.unsent(1, 1000)) == [103]


def test_places_stay_right_over_many_batches():
    history = filled(0)
    for i in range(5000):
        history.add(bytes(10), 2, 0.0)
        if i % 2:
            history.mark_sent(len(history.unsent(2, 100)))
    assert history.oldest_unsent is None
    assert firsts(history.since(history.end - 20)) == list(range(history.end - 20, history.end, 2))
    history.add(bytes(10), 2, 0.0)
    assert len(history.unsent(9, 1000)) == 1


def test_an_answer_that_was_overtaken_ends_early():
    history = filled(100)
    answer = history.since(1)
    assert next(answer).first == 1
    for _ in range(50):
        history.add(bytes(10), 2, 0.0)
    assert list(answer) == []


def test_one_batch_is_kept_however_large():
    history = History(5)
    history.add(bytes(100), 1, 0.0)
    assert len(history.unsent(1, 1)) == 1
