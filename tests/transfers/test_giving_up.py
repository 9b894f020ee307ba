"""Loads that take too long or are cancelled: answered in time, and never touching the device afterwards."""

import pytest

from tenuto.errors import Cause
from tenuto.transfers.plan import BlockFailure, Route
from tests.transfers.fake_movers import transfer
from tests.transfers.test_engine import D2H, H2D, H2K, K2D, K2H, causes

pytestmark = pytest.mark.unit

TIMEOUT = {0: Cause.TIMEOUT, 1: Cause.TIMEOUT}
CANCELLED = {0: Cause.CANCELLED, 1: Cause.CANCELLED}


@pytest.mark.parametrize("route", [H2D, K2D])
def test_a_load_is_answered_at_its_deadline_and_never_touches_the_device(rig, route):
    rig.movers.hold(1)
    rig.submit(transfer(1, route))
    rig.movers.wait_at(1)
    rig.clock.advance(29.9)
    assert rig.polled() == {}
    rig.clock.advance(0.1)
    result = rig.polled()[1]
    assert causes(result) == TIMEOUT
    assert result.n_bytes == 0
    rig.movers.let_go(1)
    rig.movers.wait_left(1)
    assert (rig.movers.touched, rig.movers.refused) == ([], [1])
    assert rig.results() == {}  # no second answer


def test_a_load_that_is_touching_the_device_cannot_be_given_up(rig):
    rig.movers.hold(1, "touch")
    rig.submit(transfer(1, H2D))
    rig.movers.wait_at(1, "touch")
    rig.clock.advance(100)
    assert rig.polled() == {}
    rig.engine.cancel([1])
    assert rig.polled() == {}
    rig.movers.let_go(1, "touch")
    assert causes(rig.results()[1]) == {}
    assert rig.movers.touched == [1]


def test_a_load_queued_behind_another_is_given_up_without_being_moved(rig):
    rig.movers.hold(1, "touch")
    rig.submit(transfer(1, H2D), transfer(2, H2D))
    rig.movers.wait_at(1, "touch")
    rig.clock.advance(30)
    assert set(rig.polled()) == {2}
    rig.movers.let_go(1, "touch")
    assert set(rig.results()) == {1}
    rig.submit(transfer(3, H2D))
    rig.results()
    assert list(rig.movers.indices()) == [1, 3]


def test_a_load_whose_source_does_not_arrive_is_given_up_and_the_source_answers_later(rig):
    rig.movers.hold(1)
    rig.submit(transfer(1, K2H), transfer(2, H2D, after=(1,)))
    rig.movers.wait_at(1)
    rig.clock.advance(30)
    assert {number: causes(result) for number, result in rig.polled().items()} == {2: TIMEOUT}
    rig.movers.let_go(1)
    assert {number: causes(result) for number, result in rig.results().items()} == {1: {}}
    assert rig.movers.touched == []


def test_what_follows_a_load_that_was_given_up_fails_with_it(rig):
    rig.movers.hold(1)
    rig.submit(transfer(1, K2H), transfer(2, H2D, after=(1,)), transfer(3, H2K, after=(2,)))
    rig.movers.wait_at(1)
    rig.clock.advance(30)
    rig.polled()
    rig.movers.let_go(1)
    assert causes(rig.results()[3]) == TIMEOUT
    assert list(rig.movers.indices()) == [1]


@pytest.mark.parametrize("route", [K2H, H2K])
def test_only_loads_to_the_device_have_a_deadline(rig, route):
    rig.movers.hold(1)
    rig.submit(transfer(1, route))
    rig.movers.wait_at(1)
    rig.clock.advance(1000)
    rig.engine.cancel([1])
    assert rig.polled() == {}
    rig.movers.let_go(1)
    assert causes(rig.results()[1]) == {}


def test_a_stage_that_ended_late_is_still_good(rig):
    rig.movers.on_move = lambda: rig.clock.advance(1000)
    rig.submit(transfer(1, D2H))
    assert causes(rig.results()[1]) == {}


def test_a_load_that_ended_before_anybody_looked_is_good_however_late(rig):
    rig.submit(transfer(1, H2D))
    rig.movers.wait_left(1)
    assert rig.engine.drain(30)
    rig.clock.advance(1000)
    assert causes(rig.polled()[1]) == {}


@pytest.mark.parametrize("route", [H2D, K2D])
def test_a_cancelled_load_is_answered_at_once_and_never_touches_the_device(rig, route):
    rig.movers.hold(1)
    rig.submit(transfer(1, route))
    rig.movers.wait_at(1)
    rig.engine.cancel([1, 1, 99])
    assert causes(rig.polled()[1]) == CANCELLED
    rig.movers.let_go(1)
    rig.movers.wait_left(1)
    assert rig.movers.touched == []
    assert rig.results() == {}


def test_a_load_given_up_while_waiting_says_so_also_of_blocks_that_had_failed(rig):
    rig.movers.failures[1] = [BlockFailure(0, Cause.CORRUPT)]
    rig.movers.hold(2)
    rig.submit(transfer(1, K2H), transfer(2, K2D, after=(1,)))
    rig.movers.wait_at(2)
    rig.engine.cancel([2])
    assert set(causes(rig.polled()[2])) == {0, 1}
    rig.movers.let_go(2)


def test_a_deadline_begins_when_the_load_is_submitted(rig):
    rig.clock.advance(50)
    rig.movers.hold(1)
    rig.submit(transfer(1, Route.HOST_TO_DEVICE))
    assert rig.polled() == {}
    rig.clock.advance(30)
    assert causes(rig.polled()[1]) == TIMEOUT
