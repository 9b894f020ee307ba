"""`tenuto top`: what a stream's messages come to."""

import pytest

from tenuto.cli.top.tally import HIDDEN_S, Tally
from tenuto.events import Batch, Group, Kind, Part, Source

pytestmark = pytest.mark.unit


class World:
    """A tally, with a clock that stands still."""

    def __init__(self):
        self.now, self.next = 50.0, 1
        self.tally = Tally(lambda: self.now, lambda: 1e6 + self.now)
        self.source = Source("node", "w", 0, bytes(16))

    def tell(self, *groups, age_s=0.0, stream=b"12345678"):
        batch = Batch(stream, self.next, int(1000 * (1e6 + self.now - age_s)), self.source, groups)
        self.next += batch.n_events
        self.tally.take(batch)

    def worker(self):
        (found,) = self.tally.look().workers
        return found


def group(kind, *numbers, tier=1, volume="", prefix=0, n_lost=0):
    hashes = b"".join(n.to_bytes(16, "big") for n in numbers)
    prefixes = prefix.to_bytes(16, "big") * len(numbers)
    return Group(kind, tier, volume, n_lost or 1000, 16, 0, "", {}, hashes, hashes, prefixes)


def test_blocks_chains_and_changes_are_counted_by_tier_and_volume():
    world = World()
    world.tell(group(Kind.STORED, 1, 2, 3, prefix=1), group(Kind.STORED, 4, prefix=4))
    world.tell(group(Kind.STORED, 1, tier=2, volume="/b", prefix=1), group(Kind.STORED, 1, tier=2, prefix=1))
    world.tell(group(Kind.REMOVED, 2, 9), group(Kind.LOST, n_lost=44))
    host, disk, volume = world.worker().holdings
    assert (host.tier, host.n_blocks, host.size_bytes, host.n_stored, host.n_removed) == ("host", 3, 3000, 4, 2)
    assert host.n_chains == 2
    assert host.largest == (((1).to_bytes(16, "big").hex(), 2), ((4).to_bytes(16, "big").hex(), 1))
    assert [(h.tier, h.volume, h.n_blocks) for h in (disk, volume)] == [("disk", "", 1), ("disk", "/b", 1)]
    assert world.worker().n_lost == 44
    world.tell(group(Kind.CLEARED, tier=1))
    assert [h.tier for h in world.worker().holdings] == ["disk", "disk"]


def test_kinds_of_later_versions_are_left_out():
    world = World()
    world.tell(group(99, 7, tier=77), group(99, tier=77), group(Kind.STORED, 1), group(Kind.USED, 1))
    (host,) = world.worker().holdings
    assert (host.tier, host.n_blocks, host.n_stored, host.n_removed) == ("host", 1, 1, 0)


def test_a_snapshot_takes_the_place_of_what_was_and_stores_nothing_new():
    world = World()
    world.tell(group(Kind.STORED, 1, 2))
    for number in range(2):
        world.tally.take(Part(b"87654321", 5, number, number == 1, world.source, (group(Kind.STORED, 7 + number),)))
    (host,) = world.worker().holdings
    assert (host.n_blocks, host.n_stored, world.worker().n_snapshots) == (2, 2, 1)


def test_lag_is_that_of_what_is_heard_live():
    world = World()
    world.tell(group(Kind.STORED, 1), age_s=500.0)  # told again
    assert world.worker().lag_s is None
    world.tell(age_s=0.25)
    assert world.worker().lag_s == pytest.approx(0.25, abs=0.01)
    world.now += 2.0
    world.tell(group(Kind.STORED, 2), age_s=3.0)
    assert world.worker().lag_s == pytest.approx(3.0, abs=0.01)
    world.tell(age_s=-60.0)  # its clock is ahead
    assert world.worker().lag_s == 0
    assert world.worker().heard_s == world.now


def test_a_worker_that_is_silent_for_long_is_not_shown_until_it_tells_again():
    world = World()
    world.tell(group(Kind.STORED, 1))
    world.now += HIDDEN_S
    assert world.tally.look().workers == ()
    world.tell()
    assert world.worker().holdings[0].n_blocks == 1


def test_chains_are_counted_in_a_tenth_of_the_time_at_most():
    world = World()
    ticks = iter([0.0, 0.0, 0.5, 0.7, 1.0, 6.0, 6.0])
    world.tally._clock = lambda: next(ticks)
    world.tell(group(Kind.STORED, 1, prefix=1))
    assert world.worker().holdings[0].n_chains == 1  # from 0.0 to 0.5: not again before 5.5
    world.tell(group(Kind.STORED, 2, prefix=2))
    assert world.worker().holdings[0].n_chains == 1
    assert world.worker().holdings[0].n_chains == 2
