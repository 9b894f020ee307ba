"""Volumes that are full, read-only, slow or shared, and what comes late: serving goes on, and no place is lost."""

from __future__ import annotations

import shutil
import threading
import time

import pytest

from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.testing.files import DISK_FULL, READ_ONLY, make_faulty
from tenuto.tiers.agent import moves, room
from tenuto.tiers.agent.bindings import At
from tenuto.tiers.agent.places import Places
from tenuto.tiers.disk.quota import used_bytes
from tests.tiers.agent.agent_rig import MODEL, Engine, folder_at, room_for
from tests.tiers.disk_fixtures import wait_until

pytestmark = pytest.mark.adapter


@pytest.fixture
def engine(tmp_path):
    made = Engine(tmp_path / "home", n_home=8, file_slots=2)
    made.agent.register_volume("fast", folder_at(tmp_path / "fast"), room_for(10))
    wait_until(lambda: made.agent._books.room.n_places("fast") >= 1)
    yield made
    made.agent.close()


def used(engine):
    """(volume, place) of all that is used."""
    return {(name, place) for name, places in engine.agent._books.room.places.items() for place in places.held()}


def fill_home(engine):
    """Write slots 0, 1, ... until one lies on the other volume, which is forgotten; how many are at home."""
    slot = 0
    while not engine.volumes()["fast"]:
        engine.fill([slot])
        slot += 1
    engine.forget(slot - 1)
    return slot - 1


@pytest.mark.parametrize("fault", [DISK_FULL, READ_ONLY])
def test_a_volume_that_can_not_be_written_gets_no_new_blocks_for_a_while(engine, fault, our_log, monkeypatch):
    n_home = fill_home(engine)
    assert engine.write({n_home: 40}) == []
    assert engine.volumes()["fast"] == 1
    wait_until(lambda: engine.agent._books.room.n_places("fast") > 1)
    files = make_faulty(engine.agent._books.room.volumes["fast"])
    files.write_errno = fault
    assert [failure.cause for failure in engine.write({n_home + 1: 41})] == [
        Cause.NO_SPACE if fault == DISK_FULL else Cause.IO_ERROR
    ]
    assert engine.agent.capacity().n_usable == n_home + 1  # what it holds is promised, and no more
    for slot in range(3):  # so a manager evicts
        assert engine.write({slot: 50 + slot}) == []
    engine.check()
    assert len([1 for record in our_log() if "gets no new blocks" in record.getMessage()]) == 1
    files.write_errno = 0
    monkeypatch.setattr(room, "_REST_S", 0.0)
    engine.agent._books.room.tell("fast", "once more")
    assert engine.write({n_home + 1: 41}) == []
    assert any("is written again" in record.getMessage() for record in our_log())
    engine.check()


def test_what_fails_uses_no_place(engine):
    files = [make_faulty(volume) for volume in engine.agent._books.room.volumes.values()]
    before = used(engine)
    for file in files:
        file.write_errno = READ_ONLY
    assert len(engine.write({0: 10, 1: 11})) == 2
    items = engine.items({2: 12})
    assert len(engine.agent.write_layers(items, (0, 1))) == 1
    for file in files:
        file.write_errno = 0
    assert len(engine.agent.write_layers(items, (1, 2))) == 1  # it is over, even when the disk is well again
    assert len(engine.agent.commit(items)) == 1
    assert used(engine) == before == set()
    engine.agent.check()


def test_a_read_only_volume_can_be_given_up(engine, monkeypatch):
    monkeypatch.setattr(moves, "_GROW_S", 0.1)
    engine.fill(range(3), 10)
    engine.agent.move([engine.hash(10), engine.hash(11)], "fast")
    fast = engine.agent._books.room.volumes["fast"]

    def refuse(slots):
        raise moves.StoreError(Cause.IO_ERROR, "attempt to write a readonly database")

    monkeypatch.setattr(fast._manifest, "delete", refuse)
    assert engine.agent.unregister_volume("fast").n_moved == 2
    engine.check()
    assert engine.volumes() == {"": 3}


def test_a_block_half_written_holds_a_volume_up_for_a_time_only(engine, monkeypatch):
    monkeypatch.setattr(moves, "_DRAIN_S", 0.2)
    n_home = fill_home(engine)
    items = engine.items({n_home: 40})
    assert engine.agent.write_layers(items, (0, 1)) == []
    assert engine.agent._books.where([n_home])[0].volume == "fast"
    engine.agent.unregister_volume("fast")
    assert len(engine.agent.write_layers(items, (1, 2))) == 1
    assert len(engine.agent.commit(items)) == 1
    engine.check()


def test_a_slot_forgotten_and_written_while_it_is_moved_keeps_its_place(engine, monkeypatch):
    engine.fill(range(2), 10)
    fast = engine.agent._books.room.volumes["fast"]
    write = fast.write

    def overtaken(items):
        engine.forget(0)
        engine.write({0: 20})
        return write(items)

    monkeypatch.setattr(fast, "write", overtaken)
    assert engine.agent.move([engine.hash(10)], "fast").refused == (engine.hash(10),)
    assert engine.agent._books.slot_at(At("", 0)) == 0
    engine.check()
    engine.write({5: 30})
    engine.check()


def test_what_is_written_when_the_cache_is_reset_leaves_no_place_used(engine, monkeypatch):
    home = engine.agent.home
    write = home.write

    def late(items):
        engine.agent.reset(bytes(16), 7)
        return write(items)

    monkeypatch.setattr(home, "write", late)
    engine.agent.write(engine.items({0: 10}))
    assert used(engine) == set()
    engine.agent.check()


def test_a_step_of_the_engine_does_not_wait_for_who_changes_the_books(engine):
    before = engine.agent.capacity()
    with engine.agent._lock:
        assert engine.agent.capacity() == before
        assert not engine.agent.take_news()


def test_two_agents_share_a_folder_and_its_capacity(engine, tmp_path):
    other = Engine(tmp_path / "home2", n_home=8, owner="other")
    other.agent.register_volume("fast", folder_at(tmp_path / "fast"), room_for(10))
    for one in (engine, other):
        one.fill(range(6), 10)
        one.agent.move([engine.hash(number) for number in range(10, 16)], "fast")
        one.check()
    assert used_bytes(tmp_path / "fast") <= room_for(10)
    assert engine.volumes()["fast"] + other.volumes()["fast"] >= 5
    other.agent.unregister_volume("fast")
    engine.check()
    engine.restart()
    engine.check()
    other.agent.close()


def test_a_volume_does_not_take_the_folder_of_another_engine_that_is_down(engine, tmp_path):
    other = Engine(tmp_path / "home2", n_home=8, owner="other")
    other.fill(range(3), 10)
    other.agent.close()
    engine.agent.register_volume("more", folder_at(tmp_path / "home2"), room_for(8))
    engine.agent.unregister_volume("more")
    other = Engine(tmp_path / "home2", n_home=8, owner="other")
    assert len(other.held) == 3
    other.check()
    other.agent.close()


def test_a_volume_registered_smaller_after_it_was_off_holds_what_fits(engine, tmp_path):
    engine.fill(range(6), 10)
    engine.agent.move([engine.hash(number) for number in range(10, 16)], "fast")
    engine.agent.close()
    (tmp_path / "fast").rename(tmp_path / "away")
    (tmp_path / "fast").write_text("no folder")
    engine.agent = type(engine)(engine.root, **engine.options).agent
    (tmp_path / "fast").unlink()
    (tmp_path / "away").rename(tmp_path / "fast")
    engine.agent.register_volume("fast", folder_at(tmp_path / "fast"), room_for(3))
    assert used_bytes(tmp_path / "fast") <= room_for(3)
    engine.held = dict(engine.found())
    engine.fill(range(4), 20)
    engine.agent.move([engine.hash(number) for number in range(20, 24)], "fast")
    assert 1 <= engine.volumes()["fast"] <= 3
    engine.check()


def test_a_volume_that_is_off_can_be_given_up(engine, tmp_path):
    engine.agent.close()
    engine.agent = None
    (tmp_path / "fast").rename(tmp_path / "away")
    (tmp_path / "fast").write_text("no folder")
    engine.agent = type(engine)(engine.root, **engine.options).agent
    assert engine.agent.unregister_volume("fast").n_moved == 0
    with pytest.raises(ConfigError):
        engine.agent.unregister_volume("fast")


@pytest.mark.parametrize(
    ("url", "capacity_bytes"),
    [
        ("s3://[", 1 << 30), ("/a\0b", 1 << 30), ("file:///a%00b", 1 << 30), ("/\udc80\ud800", 1 << 30),
        ("file://host/a", 1 << 30), ("file:///tmp/a?b", 1 << 30), ("/" + "x" * 5000, 1 << 30), ("", 1 << 30),
        ("/dev/null/x", 1 << 30), ("/tmp/x", 1 << 70), ("/tmp/x", -5), ("c:/x", 1 << 30),
    ],
)  # fmt: skip
def test_odd_urls_and_capacities_are_one_line(engine, url, capacity_bytes):
    with pytest.raises(ConfigError) as error:
        engine.agent.register_volume("odd", url, capacity_bytes)
    assert "\n" not in str(error.value)
    assert list(engine.volumes()) == ["", "fast"]
    assert [volume.name for volume in engine.agent._file.volumes()] == ["fast"]


def test_a_folder_with_an_odd_name_is_a_volume(engine, tmp_path):
    engine.fill(range(2), 10)
    for name, url in {"odd": f"{tmp_path}/a b#c?d%20é", "coded": f"file://{tmp_path}/x%20y%23"}.items():
        folder_at(tmp_path / ("x y#" if name == "coded" else "a b#c?d%20é"))
        engine.agent.register_volume(name, url, room_for(4))
        assert engine.agent.move([engine.hash(10)], name).n_moved == 1
    assert (tmp_path / "x y#" / MODEL.folder).is_dir()
    engine.restart()
    engine.check()


def test_freeing_and_taking_a_place_again_and_again_keeps_no_memory():
    places = Places(range(100))
    assert places.take_lowest(200) == 100
    for _ in range(1000):
        places.free(7)
        places.take(7)
    assert len(places._freed) <= 1
    places.free(7)
    assert places.take_lowest(200) == 7


def test_reading_goes_on_beside_a_slow_volume(engine):
    engine.fill(range(4), 10)
    engine.agent.move([engine.hash(10)], "fast")
    files = make_faulty(engine.agent._books.room.volumes["fast"])
    files.gate.clear()
    slow = threading.Thread(target=lambda: engine.agent.move([engine.hash(number) for number in (10, 11)], "fast"))
    slow.start()
    try:
        began = time.monotonic()
        assert engine.read(1, 2, 3) == [None] * 3
        assert engine.write({2: 30}) == []
        engine.agent.capacity(), engine.agent.describe()
        assert time.monotonic() - began < 2
    finally:
        files.gate.set()
        slow.join()
    engine.check()


def test_thousands_of_hashes_in_one_move_are_taken_in_batches(engine):
    engine.fill(range(5), 10)
    wanted = [bytes(12) + number.to_bytes(4, "big") for number in range(5000)] + [
        engine.hash(number) for number in range(10, 15)
    ]
    outcome = engine.agent.move(wanted, "fast")
    assert (outcome.n_moved, len(outcome.absent)) == (5, 5000)
    engine.check()


def test_nothing_is_moved_to_a_folder_that_was_removed(engine, tmp_path):
    engine.fill(range(2), 10)
    shutil.rmtree(tmp_path / "fast")
    with pytest.raises(StoreError, match="its folder was removed"):
        engine.agent.move([engine.hash(10)], "fast")
    engine.check()


@pytest.mark.parametrize("where", ["home/inside", "."])
def test_a_folder_in_the_home_volumes_or_around_it_is_refused(engine, tmp_path, where):
    with pytest.raises(ConfigError, match="is in the home volume's folder, or has it"):
        engine.agent.register_volume("more", folder_at(tmp_path / where), room_for(4))
