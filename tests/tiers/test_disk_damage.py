"""Folders that were damaged, shrunk, locked, or shared with other people's files."""

import os
import sqlite3
import time
from dataclasses import replace

import pytest

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk.quota import Quota, used_bytes
from tenuto.tiers.disk.slotmap import SlotMap
from tests.tiers.disk_fixtures import EXTENT, NAMESPACE, block, wait_until

pytestmark = pytest.mark.adapter


def filled(open_disk, n_blocks=4, **options):
    disk = open_disk(**options)
    for slot in range(n_blocks):
        disk.wait_slots(slot + 1)
        assert disk.write((slot, slot)) == []
    return disk


def test_other_peoples_files_beside_ours_are_neither_counted_nor_removed(open_disk, tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    theirs = [root / "models" / "llama" / "weights", root / "home" / "alice" / "thesis", outside / "a" / "b"]
    for path in theirs:
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(80 * EXTENT))
    (root / "0123456789abcdef0123456789abcdef").symlink_to(outside)
    (root / "locked").mkdir(mode=0)
    disk = filled(open_disk, 12)
    assert used_bytes(root) <= 64 * EXTENT
    assert not Quota(root, 1).has_room(EXTENT, disk.claim.instance, is_needed=True)
    assert all(path.exists() for path in theirs)


def test_a_folder_just_left_is_kept_for_its_restart(open_disk, tmp_path):
    a, b = filled(open_disk, 8), filled(open_disk, 8)
    a.close()
    b.close()
    first = open_disk(capacity=used_bytes(tmp_path / "root"))  # no room to grow, but for the other's folder
    wait_until(lambda: not first.store.capacity().is_growing or first.store.capacity().n_slots > 8)
    second = open_disk()
    assert len(second.store.recovered) == 8


def test_the_folder_written_longest_ago_goes_first(open_disk, tmp_path, monkeypatch):
    monkeypatch.setattr("tenuto.tiers.disk.quota.GRACE_S", 0.0)
    old, recent = filled(open_disk), filled(open_disk)
    for disk, age in ((old, 2000), (recent, 1000)):
        disk.close()
        for path in (disk.claim.instance, *disk.folder.glob("manifest.sqlite*")):
            os.utime(path, (time.time() - age,) * 2)
    os.utime(recent.claim.instance, (time.time() - 3000,) * 2)  # a folder's own time says nothing
    other = open_disk(namespace=replace(NAMESPACE, weights="other"))
    other.wait_slots(4)
    quota = Quota(tmp_path / "root", used_bytes(tmp_path / "root") + 6 * EXTENT)
    assert quota.has_room(4 * EXTENT, other.claim.instance, is_needed=False)
    assert (old.folder.exists(), recent.folder.exists()) == (False, True)


DAMAGE = {
    "no number of slots": "UPDATE files SET n_slots = 'q'",
    "a negative file": "UPDATE files SET number = -1 WHERE number = 0",
    "a file far off": "UPDATE files SET number = 100000000 WHERE number = 0",
    "no files": "DELETE FROM files",
    "a negative slot": "UPDATE blocks SET slot = -1 WHERE slot = 3",
    "a slot far off": "UPDATE blocks SET slot = 9000000000000 WHERE slot = 3",
    "a hash of text": "UPDATE blocks SET hash = 'abc' WHERE slot = 3",
    "a short hash": "UPDATE blocks SET hash = x'00' WHERE slot = 3",
    "an epoch of text": "UPDATE blocks SET epoch = 'x' WHERE slot = 3",
    "the last stamp": "UPDATE blocks SET stamp = 9223372036854775807 WHERE slot = 3",
    "another schema": "ALTER TABLE blocks DROP COLUMN prefix",
    "another format": "UPDATE meta SET value = '2' WHERE key = 'format'",
    "no meta": "DELETE FROM meta",
}


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE)
def test_a_manifest_changed_by_others_costs_misses_not_the_start(open_disk, statement):
    disk = filled(open_disk)
    disk.close()
    with sqlite3.connect(disk.folder / "manifest.sqlite") as db:
        db.execute(statement)
    db.close()
    again = open_disk()
    assert all(again.read(slot, slot) == "ok" for slot, _ in again.store.recovered)
    again.wait_slots(4)
    assert again.write((1, 100)) == []
    assert again.read(1, 100) == "ok"


def test_pages_of_the_manifest_overwritten_cost_misses_not_the_start(open_disk):
    disk = filled(open_disk)
    disk.close()
    path = disk.folder / "manifest.sqlite"
    good = path.read_bytes()
    for page in range(len(good) // 4096):
        path.write_bytes(good[: page * 4096] + b"\xff" * 4096 + good[(page + 1) * 4096 :])
        again = open_disk()
        assert all(again.read(slot, slot) in ("ok", "corrupt") for slot, _ in again.store.recovered)
        again.close()


def test_a_manifest_that_is_only_locked_is_not_thrown_away(open_disk, monkeypatch):
    disk = filled(open_disk)
    disk.close()
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kw: connect(*args, **(kw | {"timeout": 0.01})))
    lock = connect(disk.folder / "manifest.sqlite", isolation_level=None)
    lock.execute("PRAGMA locking_mode = EXCLUSIVE")
    lock.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError) as raised:
        open_disk()
    assert raised.value.cause is Cause.IO_ERROR
    lock.execute("ROLLBACK")
    lock.close()


def test_a_smaller_capacity_is_kept_from_the_start_on(open_disk, tmp_path):
    disk = filled(open_disk, 40, capacity=400 * EXTENT)
    disk.close()
    small = open_disk(capacity=30 * EXTENT)
    assert used_bytes(tmp_path / "root") <= 30 * EXTENT
    assert 0 < len(small.store.recovered) < 30
    assert all(small.read(slot, slot) == "ok" for slot, _ in small.store.recovered)


def test_a_larger_capacity_is_used_with_larger_files(open_disk):
    filled(open_disk, 8, capacity=32 * EXTENT, file_slots=100).close()
    large = open_disk(capacity=1600 * EXTENT, file_slots=100)
    assert len(large.store.recovered) == 8
    large.wait_slots(100)
    assert all(large.read(slot, slot) == "ok" for slot in range(8))
    assert large.write((90, 90)) == []
    assert large.read(90, 90) == "ok"


@pytest.mark.parametrize("name", ["a%41b", "a#b", "a?b", "a b", "ä"])
def test_any_name_of_a_root_will_do(tmp_path, name):
    from tests.tiers.disk_fixtures import Disk

    writer, reader = Disk(tmp_path / name), Disk(tmp_path / name)
    writer.wait_slots(4)
    writer.write((0, 10))
    assert reader.store.peers.news() == {"a": [(0, block(10).key)]}
    assert reader.read(0, 10, "a") == "ok"
    writer.close()
    reader.close()


def test_slots_lie_in_files_of_any_size():
    slots = SlotMap({0: 3, 1: 1, 2: 5})
    assert [slots.place(slot) for slot in (0, 2, 3, 4, 8)] == [(0, 0), (0, 2), (1, 0), (2, 0), (2, 4)]
    for slot in (-1, 9):
        with pytest.raises(StoreError, match="no pool file has slot"):
            slots.place(slot)
    for files in ({1: 3}, {0: 1, 2: 1}, {0: 0}):
        with pytest.raises(StoreError, match="gaps"):
            SlotMap(files)
