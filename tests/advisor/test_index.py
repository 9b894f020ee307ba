"""The index is what the pools have, through gaps, restarts and moves; requests are put together from events."""

import pytest

from tenuto.advisor.index import WorkerIndex
from tenuto.advisor.returning import END, LEFT, way_of
from tenuto.events import Batch, Publisher, Source, make_sender, parse_address
from tenuto.manager import inventory
from tenuto.pools.facts import Cleared, Removed, Stored, TierKind, Used
from tenuto.simulator import Bandwidths, Request
from tenuto.simulator.simulation import Simulation, Tiers
from tenuto.testing.nats_broker import free_port
from tests.advisor.advisor_rig import Rig, chain
from tests.events.events_rig import DISK, HOST, SHAPE, SOURCE, Life, Told
from tests.events.reader import Reader, hear


def check(index, life):
    """The disk's blocks, with parents and prefixes."""
    table, pool = index.table, life.pools[DISK]
    truth = {key.hash: (key.parent, key.prefix) for key in pool.registered(0, len(pool))}
    believed = {
        block: (table.parents[row], table.prefixes[table.prefix[row]]) for block, row in dict(table.rows).items()
    }
    if believed != truth:  # asked again and again while it catches up: pytest would write out what differs each time
        raise AssertionError(f"{len(believed)} blocks are believed in, and {len(truth)} are there")


@pytest.mark.unit
def test_a_long_life_is_told_as_it_was_whatever_gets_lost():
    life = Life()
    told = Told(*life.tiers)
    told.index = WorkerIndex()
    for n in range(40):
        told.way.n_to_lose = n % 3
        for _ in range(20):
            told.publisher.publish(life.step())
            told.publisher.turn()
        told.settle()
        check(told.index, life)
    table = told.index.table
    assert sum(table.counts().values()) == len(table)
    assert len(table.hashes) < 2 * 1024  # rows are used again


@pytest.mark.adapter
def test_an_advisor_and_a_publisher_that_are_started_again_have_an_equal_index():
    url, life = f"zmq://127.0.0.1:{free_port()}", Life(seed=3)

    def publisher():
        made = Publisher(make_sender(parse_address(url)), SOURCE, SHAPE, lambda: inventory({}, *life.tiers))
        made.start()
        return made

    def live(n):
        until = life.n_events + n
        while life.n_events < until:
            telling.publish(life.step())

    telling = publisher()
    live(2000)
    first = Reader(url, WorkerIndex())
    live(2000)
    first.stop()  # in the middle: what it knew is lost with it
    live(2000)
    second = Reader(url, WorkerIndex())
    live(2000)
    telling.close()
    telling = publisher()  # another stream, of the same blocks
    telling.publish([Stored(tier, tuple(pool.registered(0, len(pool)))) for tier, pool in life.tiers])
    live(2000)
    hear(second, lambda index: check(index, life))
    telling.close()


@pytest.mark.unit
def test_a_real_manager_tells_enough_to_know_its_disk_and_what_comes_back():
    simulation = Simulation(Tiers(n_host=40, n_disk=120, disk_policy="lru", admission="all"), Bandwidths())
    manager, rig, facts = simulation.manager, Rig(), []
    manager.told.tells_uses = True
    take = manager.take_facts
    manager.take_facts = lambda: facts.extend(take()) or ()  # the simulation throws them away
    keys = [chain(6, seed=n) for n in range(60)]
    requests = [Request(float(n), [key.hash for key in keys[n % 17 if n % 2 else n]]) for n in range(60)]
    simulation.run(requests)
    rig.tell(facts)
    table, pool = rig.index.table, manager.disk
    assert pool is not None
    assert set(table.rows) == {key.hash for key in pool.registered(0, len(pool))}
    used = sum(len(fact.keys) for fact in facts if isinstance(fact, Used))
    assert used == sum(simulation.outcome.n_hits.values()) > 0
    assert 0 < rig.index.model.n_returns <= used


@pytest.mark.unit
def test_a_move_is_a_place_and_no_use():
    rig = Rig()
    keys = chain(3)
    rig.request(keys)
    rig.tell([Stored(DISK, keys, (), "fast"), Removed(DISK, keys, "")])
    assert rig.index.table.counts() == {"": 0, "fast": 3}
    assert rig.index.table.uses[rig.index.table.known([keys[0].hash])].tolist() == [1]
    rig.tell([Removed(DISK, keys[:1], "")])  # late, of where it was
    assert len(rig.index.table) == 3
    rig.tell([Cleared(HOST)])
    assert len(rig.index.table) == 3
    rig.tell([Cleared(DISK, "fast")])
    assert len(rig.index.table) == 0


@pytest.mark.unit
def test_reads_of_host_memory_and_disk_are_one_request():
    rig = Rig()
    keys = chain(8)
    rig.request(keys)
    table = rig.index.table
    rig.now_s += 100.0
    longer = chain(4, seed=9, above=keys[:7])
    rig.agent.write(longer)
    facts = rig.agent.take_facts()
    rig.tell([Used(HOST, keys[:3]), Used(DISK, keys[3:7])])
    rig.tell(facts)
    rows = table.known([key.hash for key in longer])
    assert len(rows) == 11
    assert table.uses[rows].tolist() == [2] * 7 + [1] * 4
    way = way_of(n_known=7, n_new=4, n_behind=1, n_children=1)
    assert table.trait[rows].tolist() == [48 + 3 * way] * 7 + [3 * way] * 3 + [3 * way + END]
    (given_up,) = table.known([keys[7].hash])
    assert table.trait[given_up] % 3 == LEFT
    assert set(table.length[rows].tolist()) == {11}
    assert rig.index.model.n_returns == 7


@pytest.mark.unit
def test_what_the_engine_has_itself_counts_as_read():
    rig = Rig()
    keys = chain(6)
    rig.request(keys)
    rig.now_s += 100.0
    rig.agent.write(chain(2, seed=5, above=keys))
    rig.tell(rig.agent.take_facts())  # nothing of the first six was asked for
    assert rig.index.table.uses[rig.index.table.known([keys[0].hash])].tolist() == [2]


@pytest.mark.unit
def test_prompts_computed_in_parts_are_one_request():
    rig = Rig()
    keys = chain(9)
    for end in (3, 6, 9):
        rig.request(keys[:3] if end == 3 else ())
        rig.agent.write(keys[:end])
        rig.tell(rig.agent.take_facts())
        rig.now_s += 1.0
    table = rig.index.table
    assert set(table.length[table.all_rows()].tolist()) == {9}
    assert rig.index.model.n_returns == 0


@pytest.mark.unit
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (way_of(10, 2, 1, 1), way_of(10, 20, 1, 1)),  # the next turn, and a long document behind a session
        (way_of(10, 2, 1, 1), way_of(10, 2, 5, 1)),  # a regenerated answer
        (way_of(1, 20, 9, 100), way_of(1, 20, 9, 2)),  # behind a system prompt all sessions are new
        (way_of(0, 1, 0, 0), way_of(0, 100, 0, 0)),
    ],
)
def test_requests_of_different_kinds_are_told_apart(a, b):
    assert a != b
    assert {a, b} <= set(range(16))


@pytest.mark.unit
def test_ranks_and_streams_are_kept_apart():
    rig = Rig()
    rig.request(chain(3))
    other = Source("node", "worker", 1, bytes(16))
    batch = rig.tell([])
    rig.advisor.take(Batch(b"stream-9", 1, batch.time_ms, other, ()))
    assert set(rig.advisor.workers) == {("node", "worker", 0), ("node", "worker", 1)}
    rig.stream = b"stream-2"
    rig.tell([Stored(TierKind.DISK, chain(2, seed=4))])
    assert len(rig.index.table) == 2
