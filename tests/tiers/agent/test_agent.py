"""Moving blocks between volumes: right bytes all the while, and nothing lost but what there is no room for."""

from __future__ import annotations

import threading

import pytest

from tenuto.errors import ConfigError, StoreError
from tests.tiers.agent.agent_rig import BLOCKS, EXTENT, MODEL, Engine, folder_at, room_for
from tests.tiers.disk_fixtures import wait_until

pytestmark = pytest.mark.adapter

FAST = room_for(10)


@pytest.fixture
def engine(tmp_path):
    made = Engine(tmp_path / "home", n_home=16)
    wait_until(lambda: made.agent.capacity().n_slots >= 1)
    yield made
    made.agent.close()


def with_fast(engine, tmp_path):
    engine.agent.register_volume("fast", folder_at(tmp_path / "fast"), FAST)
    wait_until(lambda: engine.agent._books.room.n_places("fast") >= 1)


def full(engine):
    """How many blocks it holds when it is full, and will not grow."""
    slot = 0
    while True:
        wait_until(lambda: (now := engine.agent.capacity()).n_usable > slot or not now.is_growing)  # noqa: B023
        if engine.agent.capacity().n_usable <= slot:
            return slot
        assert engine.write({slot: slot}) == []
        slot += 1


def moved(engine):
    numbers = {block.key.hash: number for number, block in enumerate(BLOCKS)}
    return {numbers[key.hash]: volume for key, volume in engine.agent.take_news().moved}


def test_a_moved_block_keeps_its_slot_and_its_bytes(engine, tmp_path):
    with_fast(engine, tmp_path)
    engine.fill(range(3), 10)
    outcome = engine.agent.move([engine.hash(11), engine.hash(12)], "fast")
    assert (outcome.n_moved, outcome.absent, outcome.refused) == (2, (), ())
    assert engine.volumes() == {"": 1, "fast": 2}
    assert moved(engine) == {11: "fast", 12: "fast"}
    engine.check()
    engine.agent.move([engine.hash(12)], "")
    assert engine.volumes() == {"": 2, "fast": 1}
    assert moved(engine) == {12: ""}
    engine.check()


def test_moving_what_is_there_or_nowhere_does_nothing(engine, tmp_path):
    with_fast(engine, tmp_path)
    engine.write({0: 10})
    engine.agent.move([engine.hash(10)], "fast")
    outcome = engine.agent.move([engine.hash(10), engine.hash(10), engine.hash(20)], "fast")
    assert (outcome.n_moved, outcome.absent, outcome.refused) == (0, (engine.hash(20),), ())


def test_a_restart_finds_every_block_where_it_was_moved(engine, tmp_path):
    with_fast(engine, tmp_path)
    engine.fill(range(6), 10)
    engine.agent.move([engine.hash(number) for number in (11, 13, 15)], "fast")
    engine.agent.move([engine.hash(13)], "")
    before, volumes = dict(engine.held), engine.volumes()
    engine.restart()
    assert (engine.held, engine.volumes()) == (before, volumes)
    assert moved(engine) == {11: "fast", 15: "fast"}  # told once more: who starts does not know
    engine.check()


def test_a_full_volume_refuses_and_keeps_what_it_has(engine, tmp_path):
    with_fast(engine, tmp_path)
    engine.fill(range(14))
    wanted = [engine.hash(number) for number in range(14)]
    engine.agent.move(wanted, "fast")
    n_fast = engine.volumes()["fast"]
    assert 8 <= n_fast < 14
    assert len(engine.agent.move(wanted, "fast").refused) == 14 - n_fast
    engine.check()


def test_two_volumes_hold_more_than_one_and_new_blocks_go_home(engine, tmp_path):
    with_fast(engine, tmp_path)
    n_all = full(engine)
    home, fast = engine.agent.describe().volumes
    assert n_all > home.n_places
    assert home.n_blocks > fast.n_blocks
    engine.check()
    for slot in range(n_all):  # each slot anew
        assert engine.write({slot: 63 - slot}) == []
    engine.check()


def test_a_slot_written_while_its_block_is_moved_holds_the_new_block(engine, tmp_path, monkeypatch):
    with_fast(engine, tmp_path)
    engine.fill(range(2), 10)
    fast = engine.agent._books.room.volumes["fast"]
    write = fast.write

    def overtaken(items):
        engine.write({0: 20})
        return write(items)

    monkeypatch.setattr(fast, "write", overtaken)
    outcome = engine.agent.move([engine.hash(10), engine.hash(11)], "fast")
    assert (outcome.n_moved, outcome.refused) == (1, (engine.hash(10),))
    engine.check()
    assert engine.volumes() == {"": 1, "fast": 1}
    engine.restart()
    assert engine.held == {0: 20, 1: 11}
    engine.check()


def test_a_damaged_block_is_not_moved(engine, tmp_path):
    with_fast(engine, tmp_path)
    engine.write({0: 10})
    with (engine.agent.claim.folder / "pool-00000.kv").open("r+b") as file:
        file.seek(EXTENT - 5000)
        file.write(b"\0" * 4096)
    assert engine.agent.move([engine.hash(10)], "fast").refused == (engine.hash(10),)
    assert engine.volumes()["fast"] == 0
    with pytest.raises(StoreError, match="sum"):
        engine.agent.get(engine.hash(10))


def test_unregistering_moves_what_fits_and_loses_the_rest(engine, tmp_path):
    with_fast(engine, tmp_path)
    n_all = full(engine)
    at_home = [slot for slot in engine.held if engine.agent._books.where([slot])[0].volume == ""]
    engine.forget(*at_home[:2])
    n_fast = engine.volumes()["fast"]
    outcome = engine.agent.unregister_volume("fast")
    lost = engine.agent.take_news().lost
    assert list(outcome.refused) == lost
    assert 2 <= outcome.n_moved == n_fast - len(lost)
    assert engine.volumes() == {"": n_all - 2 - len(lost)}
    engine.held = {slot: number for slot, number in engine.held.items() if engine.hash(number) not in lost}
    engine.check()
    assert engine.agent.capacity().n_usable == engine.agent.describe().volumes[0].n_places
    before = engine.held
    engine.restart()
    assert engine.held == before
    assert not (tmp_path / "fast" / MODEL.folder).exists()


def test_dropped_blocks_are_lost_and_told(engine, tmp_path):
    with_fast(engine, tmp_path)
    engine.fill(range(3), 10)
    engine.agent.move([engine.hash(11)], "fast")
    assert engine.agent.drop([engine.hash(11), engine.hash(12), engine.hash(40)]) == 2
    assert sorted(engine.agent.take_news().lost) == sorted([engine.hash(11), engine.hash(12)])
    assert engine.volumes() == {"": 1, "fast": 0}
    engine.restart()
    assert engine.held == {0: 10}


def test_compacting_gives_nearly_all_of_the_free_room_back_while_readers_go_on(tmp_path):
    engine = Engine(tmp_path / "home", n_home=60)
    n_slots = 48
    engine.fill(range(n_slots))
    gone = [slot for slot in range(n_slots) if slot % 5 > 1]  # 60 %
    engine.forget(*gone)
    folder = engine.agent.claim.folder
    wait_until(lambda: not engine.agent.home._growth._files_change.locked())
    before = sum(path.stat().st_blocks * 512 for path in folder.glob("pool-*.kv"))
    free = before - len(engine.held) * EXTENT
    over, faults = threading.Event(), []

    def read_all():
        reader = Engine.__new__(Engine)
        reader.__dict__ |= engine.__dict__ | {"arena": type(engine.arena)(16, EXTENT)}
        while not over.is_set():
            faults.extend(cause for slot in list(engine.held) for cause in reader.read(slot) if cause)

    thread = threading.Thread(target=read_all)
    thread.start()
    outcome = engine.agent.compact("")
    over.set()
    thread.join()
    after = sum(path.stat().st_blocks * 512 for path in folder.glob("pool-*.kv"))
    assert faults == []
    assert outcome.freed_bytes == pytest.approx(before - after, abs=2 * 4096)
    assert (before - after) / free >= 0.9
    engine.check()
    engine.restart()
    engine.check()
    assert len(engine.held) == n_slots - len(gone)
    n_places = engine.agent._books.room.n_places("")
    engine.fill(gone)  # room comes back as it is used
    assert engine.agent._books.room.n_places("") > n_places
    engine.check()
    engine.agent.close()


def test_what_is_put_mends_a_damaged_copy(engine):
    engine.write({0: 10})
    extent = engine.agent.get(engine.hash(10))
    with (engine.agent.claim.folder / "pool-00000.kv").open("r+b") as file:
        file.write(b"\0" * 4096)
    engine.agent.put(extent)
    engine.check()
    with pytest.raises(StoreError):
        engine.agent.put(b"\0" * EXTENT)
    engine.forget(0)
    with pytest.raises(StoreError, match="no volume has"):
        engine.agent.put(extent)


@pytest.mark.parametrize(
    ("name", "url", "capacity_bytes", "said"),
    [
        ("Fast", "/x", FAST, "is no name"),
        ("fast", "x/y", FAST, "absolute"),
        ("fast", "ftp://host/x", FAST, "neither a folder nor an object store"),
        ("fast", "s3://", FAST, "s3://BUCKET/PREFIX"),
        ("fast", "/proc/x", FAST, "there is no folder /proc/x; make it, or mount its disk"),
        ("fast", "/proc/self", FAST, "can't write"),
        ("fast", "/tmp", EXTENT, "no room for two blocks"),
    ],
)
def test_what_is_no_volume_is_one_line(engine, name, url, capacity_bytes, said):
    with pytest.raises(ConfigError, match=said) as error:
        engine.agent.register_volume(name, url, capacity_bytes)
    assert "\n" not in str(error.value)
    assert list(engine.volumes()) == [""]


def test_the_home_volume_and_block_devices_are_no_further_volumes(engine, monkeypatch):
    with pytest.raises(ConfigError, match="the home volume's folder"):
        engine.agent.register_volume("fast", str(engine.root), FAST)
    monkeypatch.setattr("pathlib.Path.is_block_device", lambda _: True)
    with pytest.raises(ConfigError, match="is a block device; make a file system"):
        engine.agent.register_volume("fast", "/dev/vda", FAST)
    with pytest.raises(ConfigError, match="there is no volume"):
        engine.agent.unregister_volume("fast")
    with pytest.raises(ConfigError, match="there is no volume"):
        engine.agent.move([], "fast")


def test_a_name_means_one_volume(engine, tmp_path):
    with_fast(engine, tmp_path)
    engine.agent.register_volume("fast", folder_at(tmp_path / "fast"), FAST)
    with pytest.raises(ConfigError, match="already; unregister it first"):
        engine.agent.register_volume("fast", folder_at(tmp_path / "other"), FAST)


def test_a_volume_that_is_gone_at_the_start_costs_its_blocks_alone(engine, tmp_path, our_log):
    with_fast(engine, tmp_path)
    engine.fill(range(2), 10)
    engine.agent.move([engine.hash(11)], "fast")
    engine.agent.close()
    (tmp_path / "fast").rename(tmp_path / "away")
    (tmp_path / "fast").write_text("no folder")
    engine.agent = type(engine)(engine.root, **engine.options).agent
    assert dict(engine.found()) == {0: 10}
    assert any("volume fast is off" in record.getMessage() for record in our_log())
    assert engine.write({1: 20}) == []
    engine.held = {0: 10, 1: 20}
    engine.check()


def test_after_a_reset_nothing_of_before_is_on_any_volume(engine, tmp_path):
    with_fast(engine, tmp_path)
    engine.fill(range(2), 10)
    engine.agent.move([engine.hash(11)], "fast")
    engine.agent.reset(bytes(16), 77)
    assert [failure.index for failure in engine.agent.read(engine.items({0: 10, 1: 11}, filled=False))] == [0, 1]
    engine.agent.check()
    engine.restart()
    assert engine.held == {}
