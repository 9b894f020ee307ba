"""A manifest read from outside: the right rows, whatever its owner did, and nothing changed beside it.

A living owner is read from another process, as it is meant to be.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk import listing
from tenuto.tiers.disk.listing import read_listing
from tests.tiers.disk_fixtures import block

pytestmark = pytest.mark.adapter


def state_of(folder):
    """Everything about the files of a folder that a reader must leave alone."""
    return {
        path.name: (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes())
        for path in folder.iterdir()
        if path.name.startswith("manifest")
    }


LOOKS = """
import json, sys
from pathlib import Path
from tenuto.tiers.disk.listing import read_listing
for folder in sys.stdin:
    rows = read_listing(Path(folder.rstrip())).rows
    print(json.dumps([(row.slot, row.key.hash.hex()) for row in rows]), flush=True)
"""
NUMBERS = {block(number).key.hash.hex(): number for number in range(100)}


@pytest.fixture
def seen():
    """A function: the numbers of the listed blocks by slot, read by another process without a trace."""
    command = [sys.executable, "-c", LOOKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as other:

        def look(folder, while_looking=None):
            before = state_of(folder)
            other.stdin.write(f"{folder}\n")
            if while_looking:
                while_looking()
            found = {slot: NUMBERS[name] for slot, name in json.loads(other.stdout.readline())}
            assert while_looking or state_of(folder) == before
            return found

        yield look
        other.stdin.close()


def filled(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    assert disk.write((0, 10), (1, 11)) == []
    return disk


def test_of_a_living_engine_it_is_what_it_has_committed(open_disk, seen):
    disk = filled(open_disk)
    assert (disk.folder / "manifest.sqlite-wal").exists()
    assert seen(disk.folder) == {0: 10, 1: 11}
    disk.write((0, 12))
    assert seen(disk.folder) == {0: 12, 1: 11}


def test_of_an_engine_that_closed_it_is_all(open_disk, seen):
    disk = filled(open_disk)
    disk.close()
    assert not (disk.folder / "manifest.sqlite-wal").exists()
    assert seen(disk.folder) == {0: 10, 1: 11}


@pytest.mark.parametrize("with_shm", [True, False])
def test_of_a_killed_engine_its_log_is_read_too(open_disk, tmp_path, with_shm, seen):
    disk = filled(open_disk)
    left = tmp_path / "left"
    left.mkdir()
    for path in disk.folder.glob("manifest*"):  # as a kill leaves it: the log is not played back
        if with_shm or not path.name.endswith("-shm"):
            shutil.copyfile(path, left / path.name)
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copyfile(left / "manifest.sqlite", bare / "manifest.sqlite")
    with pytest.raises(StoreError):
        read_listing(bare)  # so the rows are in the log
    assert seen(left) == {0: 10, 1: 11}


def test_a_rollback_journal_is_left_to_its_owner(open_disk, seen):
    disk = filled(open_disk)
    disk.close()
    path = disk.folder / "manifest.sqlite"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=DELETE")
    db.execute("BEGIN IMMEDIATE")
    db.execute("DELETE FROM blocks WHERE slot = 1")  # not committed
    assert (disk.folder / "manifest.sqlite-journal").exists()
    assert seen(disk.folder) == {0: 10, 1: 11}
    db.execute("COMMIT")
    assert seen(disk.folder) == {0: 10}
    db.close()


def test_a_journal_that_a_killed_engine_left_is_played_back_in_a_copy(open_disk, seen):
    disk = filled(open_disk)
    disk.close()
    path = disk.folder / "manifest.sqlite"
    script = f"""
import os, sqlite3
db = sqlite3.connect({str(path)!r}, isolation_level=None)
db.execute("PRAGMA journal_mode=DELETE")
db.execute("PRAGMA cache_size=1")
db.execute("PRAGMA cache_spill=1")
db.execute("BEGIN EXCLUSIVE")
db.execute("DELETE FROM blocks")
db.execute("CREATE TABLE more(a)")
db.executemany("INSERT INTO more VALUES (?)", [("x" * 3000,)] * 200)  # more than fits: pages are written
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (disk.folder / "manifest.sqlite-journal").exists()
    assert seen(disk.folder) == {0: 10, 1: 11}


def test_rows_stay_whole_while_their_owner_writes_closes_and_opens(open_disk, seen):
    disk = filled(open_disk)

    def write_close_and_open():
        nonlocal disk
        for number in range(20, 25):
            disk.write((0, number))
        disk.close()
        disk = open_disk()
        for number in range(25, 30):
            disk.write((0, number))

    for _ in range(10):
        found = seen(disk.folder, write_close_and_open)
        assert found.pop(0, 10) in (10, *range(20, 30))
        assert found == {1: 11}
    assert len(disk.store.recovered) == 2  # nor was the owner harmed


def test_of_another_format_nothing_but_its_number_is_read(open_disk):
    disk = filled(open_disk)
    disk.close()
    with sqlite3.connect(disk.folder / "manifest.sqlite") as db:
        db.execute("UPDATE meta SET value = '2' WHERE key = 'format'")
        db.execute("DROP TABLE blocks")
    db.close()
    found = read_listing(disk.folder)
    assert (found.format, found.is_readable, found.rows) == ("2", False, [])


@pytest.mark.parametrize(
    "statement",
    ["UPDATE blocks SET hash = 'abc' WHERE slot = 1", "UPDATE blocks SET epoch = 'x'", "UPDATE files SET n_slots = 0"],
)
def test_a_damaged_one_is_said_to_be(open_disk, statement):
    disk = filled(open_disk)
    disk.close()
    with sqlite3.connect(disk.folder / "manifest.sqlite") as db:
        db.execute(statement)
    db.close()
    with pytest.raises(StoreError) as raised:
        read_listing(disk.folder)
    assert raised.value.cause is Cause.CORRUPT


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 8192])
def test_what_is_no_manifest_is_damage(tmp_path, content):
    (tmp_path / "manifest.sqlite").write_bytes(content)
    with pytest.raises(StoreError) as raised:
        read_listing(tmp_path)
    assert raised.value.cause is Cause.CORRUPT


def test_none_is_missing(tmp_path):
    with pytest.raises(StoreError) as raised:
        read_listing(tmp_path)
    assert raised.value.cause is Cause.MISSING
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - nothing was made


def test_what_was_written_during_the_look_is_looked_at_again(open_disk, monkeypatch):
    disk = filled(open_disk)
    disk.close()
    query, n_queries = listing._query, 0

    def written_meanwhile(path, options):
        nonlocal n_queries
        n_queries += 1
        found = query(path, options)
        if n_queries == 1:
            os.utime(path, (1, 1))
        return found

    monkeypatch.setattr(listing, "_query", written_meanwhile)
    assert len(read_listing(disk.folder).rows) == 2
    assert n_queries == 2
