"""A lane's wait: asleep most of the time, awake at the end."""

import pytest

from tenuto.transfers.lanes.waiter import Waiter

pytestmark = pytest.mark.unit


class World:
    """A clock that sleeping and spinning move on."""

    def __init__(self):
        self.now, self.slept, self.spun = 100.0, 0.0, 0.0

    def sleep(self, seconds):
        assert seconds > 0
        self.slept += seconds
        self.now += seconds

    def event(self, at):
        world = self

        class Event:
            def query(self):
                return world.now >= at

            def synchronize(self):
                world.spun += max(0.0, at - world.now)
                world.now = max(world.now, at)

        return Event()


@pytest.fixture
def world():
    return World()


def wait(world, waiter, seconds, n_bytes, after=0.0):
    world.slept = world.spun = 0.0
    start = world.now
    waiter.wait(world.event(start + after + seconds), world.event(start + after), n_bytes, start)
    assert world.now >= start + after + seconds
    return world.slept, world.spun


def test_the_first_wait_spins_since_nothing_is_known(world):
    slept, spun = wait(world, Waiter(lambda: world.now, world.sleep), 0.02, 1000)
    assert (slept, spun) == (0.0, pytest.approx(0.02))


def test_later_ones_sleep_through_most_of_what_the_fastest_needed(world):
    waiter = Waiter(lambda: world.now, world.sleep)
    wait(world, waiter, 0.02, 1000)
    assert wait(world, waiter, 0.08, 4000) == (pytest.approx(0.068), pytest.approx(0.012))


def test_who_overslept_spins_the_next_time_and_knows_again(world):
    waiter = Waiter(lambda: world.now, world.sleep)
    wait(world, waiter, 0.02, 1000)
    assert wait(world, waiter, 0.01, 1000) == (pytest.approx(0.017), 0.0)
    assert wait(world, waiter, 0.01, 1000) == (0.0, pytest.approx(0.01))
    assert wait(world, waiter, 0.01, 1000) == (pytest.approx(0.0085), pytest.approx(0.0015))


def test_time_since_the_copies_were_queued_is_not_slept_again(world):
    waiter = Waiter(lambda: world.now, world.sleep)
    wait(world, waiter, 0.02, 1000)
    world.slept = 0.0
    queued_at = world.now
    world.now += 0.015
    waiter.wait(world.event(queued_at + 0.02), world.event(0.0), 1000, queued_at)
    assert world.slept == pytest.approx(0.002)


def test_short_waits_are_spun(world):
    waiter = Waiter(lambda: world.now, world.sleep)
    wait(world, waiter, 0.02, 1_000_000)
    assert wait(world, waiter, 0.0004, 20_000) == (0.0, pytest.approx(0.0004))


def test_what_has_ended_is_not_waited_for_and_teaches_no_impossible_rate(world):
    waiter = Waiter(lambda: world.now, world.sleep)
    waiter.wait(world.event(0.0), world.event(0.0), 1000, world.now)
    assert world.slept == world.spun == 0.0
    assert waiter._bytes_s <= 1e12


def test_computing_before_the_copies_is_slept_through_and_not_taken_for_their_time(world):
    waiter = Waiter(lambda: world.now, world.sleep)
    slept, spun = wait(world, waiter, 0.02, 1000, after=0.3)
    assert slept == pytest.approx(0.3, rel=0.02)
    assert spun == pytest.approx(0.02, rel=0.2)
    assert waiter._bytes_s == pytest.approx(1000 / 0.02, rel=0.2)
