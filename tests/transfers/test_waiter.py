"""A lane's wait: asleep most of the time, awake at the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

    def event(self, at, wakes_s=None):
        """Who waits for it spins, or sleeps and wakes so many seconds late."""
        world = self

        class Event:
            def query(self):
                return world.now >= at

            def synchronize(self):
                if world.now >= at:
                    return
                if wakes_s is None:
                    world.spun += at - world.now
                    world.now = at
                else:
                    world.sleep(at + wakes_s - world.now)

        return Event()


@pytest.fixture
def world():
    return World()


def wait(world, waiter, seconds, n_bytes, after=0.0, wakes_s=0.0):
    world.slept = world.spun = 0.0
    start = world.now
    waiter.wait(world.event(start + after + seconds), world.event(start + after, wakes_s), n_bytes, start)
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


def late(world, waiter, seconds, n_bytes, *, late_by, after=0.0, wakes_s=0.0):
    """A wait that begins `late_by` after queueing; how late it ends."""
    start = world.now
    world.now += late_by
    ends = start + after + seconds
    waiter.wait(world.event(ends), world.event(start + after, wakes_s), n_bytes, start)
    return world.now - max(ends, start + late_by)


@pytest.mark.parametrize("late_by", [0.5, 0.0201, 0.0199, 0.018, 0.01])
@pytest.mark.parametrize("after", [0.0, 0.009])
def test_who_came_late_does_not_take_the_time_before_for_that_of_the_copies(world, late_by, after):
    waiter = Waiter(lambda: world.now, world.sleep)
    late(world, waiter, 0.02 - after, 1000, late_by=late_by, after=after)
    assert late(world, waiter, 0.002, 2000, late_by=0) == pytest.approx(0, abs=2e-5)  # ten times as fast
    assert late(world, waiter, 0.2, 200_000, late_by=0) == pytest.approx(0, abs=1e-9)
    assert world.slept > 0.1


def test_who_comes_late_may_learn_that_copies_are_faster_and_never_that_they_are_slower(world):
    waiter = Waiter(lambda: world.now, world.sleep)
    wait(world, waiter, 0.02, 1000)
    late(world, waiter, 0.02, 1000, late_by=3.0)
    assert waiter._bytes_s == pytest.approx(1000 / 0.02)
    late(world, waiter, 0.005, 1000, late_by=0.009)
    assert waiter._bytes_s == pytest.approx(1000 / 0.009)
    late(world, waiter, 0.008, 1000, late_by=0.0079)
    assert waiter._bytes_s == pytest.approx(1000 / 0.008)


def test_copies_behind_others_of_another_thread_do_not_teach_the_sum_of_both(world):
    waiter = Waiter(lambda: world.now, world.sleep)
    start = world.now
    large, small = world.event(start + 1.0), world.event(start + 1.001)
    spin = large.synchronize

    def meanwhile():
        waiter.wait(small, world.event(start), 1000, start)  # was queued behind the large one, and ends just after it
        spin()

    large.synchronize = meanwhile
    waiter.wait(large, world.event(start), 1_000_000, start)
    assert not waiter._bytes_s
    wait(world, waiter, 0.02, 20_000)
    assert waiter._bytes_s == pytest.approx(1_000_000)


def test_a_wait_that_fails_does_not_count_as_waiting_for_ever(world):
    waiter = Waiter(lambda: world.now, world.sleep)
    broken = world.event(world.now + 1)

    def fail():
        raise RuntimeError("the device is gone")

    broken.synchronize = fail
    with pytest.raises(RuntimeError):
        waiter.wait(broken, world.event(0.0), 1000, world.now)
    wait(world, waiter, 0.02, 1000)
    assert waiter._bytes_s == pytest.approx(1000 / 0.02)


WAKES = st.floats(0, 1e-3)


@given(
    st.lists(
        st.tuples(st.floats(1e-5, 0.5), st.floats(0, 1), st.floats(0, 0.3), WAKES),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_on_a_wire_of_one_rate_no_wait_ends_late_whatever_came_before(waits):
    world = World()
    waiter = Waiter(lambda: world.now, world.sleep)
    for seconds, late_by, after, wakes_s in waits:
        is_late = late(world, waiter, seconds, seconds * 1e9, late_by=late_by, after=after, wakes_s=wakes_s)
        assert is_late <= 0.07 * seconds + wakes_s + 1e-9


@given(WAKES)
def test_computing_before_the_copies_is_slept_through_and_not_taken_for_their_time(wakes_s):
    world = World()
    waiter = Waiter(lambda: world.now, world.sleep)
    slept, spun = wait(world, waiter, 0.02, 1000, after=0.3, wakes_s=wakes_s)
    assert slept == pytest.approx(0.3 + wakes_s)
    assert spun == pytest.approx(0.02 - wakes_s)
    assert waiter._bytes_s == pytest.approx(1000 / 0.02, rel=0.06)


def test_nobody_looks_again_and_again_while_computing_goes_on(world):
    waiter = Waiter(lambda: world.now, world.sleep)
    computed, looks = world.event(world.now + 0.3, 0.0005), []
    query = computed.query
    computed.query = lambda: looks.append(world.now) or query()
    waiter.wait(world.event(world.now + 0.32), computed, 1000, world.now)
    assert len(looks) == 1
