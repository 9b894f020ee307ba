"""`tenuto inspect --verify`: what is bad is told by place and cause, what is being rewritten is not bad."""

import json
import os
import shutil
import subprocess
import sys
import threading

import pytest

from tenuto.cli.inspect import verification
from tenuto.cli.inspect.survey import survey
from tenuto.cli.inspect.verification import verify
from tenuto.cli.main import main
from tests.tiers.disk_fixtures import EXTENT, LAYOUT, block, wait_until

pytestmark = pytest.mark.adapter


def flip(disk, slot, offset):
    """Change one byte of a slot; files have four."""
    path = disk.folder / f"pool-{slot // 4:05d}.kv"
    with path.open("r+b") as file:
        file.seek(slot % 4 * EXTENT + offset)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def run(root):
    """The exit code and the verdict, from a process of its own: engines of this one may live."""
    command = [sys.executable, "-m", "tenuto.cli.main", "inspect", str(root), "--verify", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)["verified"]


def surveyed(disk):
    """A closed store's root as it is now."""
    disk.close()
    return survey(disk.root, frozenset())


def test_a_whole_root_is_good(open_disk, root):
    open_disk(10)
    open_disk(3).close()
    assert run(root) == (0, {"is_good": True, "good": 13, "rewritten": 0, "bad": [], "unread": []})


def test_every_damaged_block_is_named_with_its_cause(open_disk, root):
    disk = open_disk(10)
    disk.close()
    flip(disk, 1, LAYOUT.header_bytes + 5)  # a key
    flip(disk, 4, 60)  # the header
    os.truncate(disk.folder / "pool-00002.kv", EXTENT + 512)  # slot 9 is cut, slot 8 is whole
    code, found = run(root)
    assert code == 1
    assert (found["is_good"], found["good"], found["rewritten"]) == (False, 7, 0)
    told = {bad["slot"]: (bad["hash"], bad["cause"], bad["message"]) for bad in found["bad"]}
    assert told == {
        1: (block(1).key.hash.hex(), "corrupt", "sum of layer 0, head 0 does not match"),
        4: (block(4).key.hash.hex(), "corrupt", "header sum does not match"),
        9: (block(9).key.hash.hex(), "corrupt", f"512 of {EXTENT} bytes are there"),
    }
    assert {bad["path"] for bad in found["bad"]} == {str(disk.folder.relative_to(root))}


def test_a_block_in_the_place_of_another_is_bad(open_disk, root):
    disk = open_disk(2)
    disk.close()
    path = disk.folder / "pool-00000.kv"
    data = path.read_bytes()
    path.write_bytes(data[:EXTENT] * 2 + data[2 * EXTENT :])
    code, found = run(root)
    assert (code, found["good"], found["bad"][0]["message"]) == (1, 1, "header is of another block")


def test_blocks_of_a_file_that_is_gone_are_missing(open_disk, root):
    disk = open_disk(6)
    disk.close()
    (disk.folder / "pool-00001.kv").unlink()
    code, found = run(root)
    assert (code, found["good"]) == (1, 4)
    assert [bad["cause"] for bad in found["bad"]] == ["missing", "missing"]


def test_what_its_engine_wrote_again_since_it_was_listed_is_not_bad(open_disk):
    seen = surveyed(open_disk(4))
    disk = open_disk(0)
    disk.write((1, 40), (2, 41))  # other blocks in these slots
    disk.store.forget([3])
    disk.close()
    flip(disk, 3, 60)
    flip(disk, 0, 60)  # still listed: bad
    verdict = verify(seen, lambda n: None)
    assert (verdict.n_good, verdict.n_rewritten) == (0, 3)
    assert [bad.slot for bad in verdict.bad] == [0]


def test_a_folder_removed_meanwhile_has_no_bad_blocks(open_disk):
    disk = open_disk(4)
    seen = surveyed(disk)
    shutil.rmtree(disk.folder.parent)
    verdict = verify(seen, lambda n: None)
    assert (verdict.n_good, verdict.n_rewritten, verdict.bad) == (0, 4, [])


def test_a_folder_whose_manifest_cannot_be_read_again_keeps_its_bad_blocks(open_disk):
    disk = open_disk(4)
    seen = surveyed(disk)
    flip(disk, 0, 60)
    (disk.folder / "manifest.sqlite").write_bytes(b"not a manifest any more")
    assert [bad.slot for bad in verify(seen, lambda n: None).bad] == [0]


def test_beside_an_engine_that_never_stops_writing_nothing_is_called_bad(open_disk, root):
    disk = open_disk(8)
    ending = threading.Event()
    n_written = 0

    def write_for_ever():
        nonlocal n_written
        while not ending.is_set():
            assert disk.write((n_written % 8, 8 + n_written % 56)) == []
            n_written += 1

    writer = threading.Thread(target=write_for_ever)
    writer.start()
    wait_until(lambda: n_written > 8)
    found = [run(root) for _ in range(4)]
    ending.set()
    writer.join()
    assert [code for code, _ in found] == [0] * 4
    assert all(verdict["good"] + verdict["rewritten"] in (7, 8) for _, verdict in found)


def test_the_bar_hears_of_every_byte(open_disk):
    seen, moved = surveyed(open_disk(10)), []
    verify(seen, moved.append)
    assert sum(moved) == 10 * EXTENT
    assert len(moved) > 1


def test_large_blocks_are_read_in_bounded_memory(open_disk, monkeypatch):
    monkeypatch.setattr(verification, "BATCH_BYTES", EXTENT - 1)
    seen, moved = surveyed(open_disk(3)), []
    assert verify(seen, moved.append).n_good == 3
    assert moved == [EXTENT] * 3


def test_a_long_list_of_bad_blocks_is_cut_for_people(open_disk, root, capsys):
    disk = open_disk(24)
    disk.close()
    for path in disk.folder.glob("*.kv"):
        path.unlink()
    assert main(["inspect", str(root), "--verify"]) == 1
    shown = capsys.readouterr().out
    assert shown.count(": missing: ") == 20
    assert "... and 4 more; --json names all" in shown
    assert "verified: 0 good, 24 bad" in shown


def test_an_interruption_is_one_line(open_disk, root, capsys, monkeypatch):
    open_disk(3).close()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(verification, "_batches", interrupted)
    assert main(["inspect", str(root), "--verify"]) == 130
    assert capsys.readouterr().err.splitlines() == ["tenuto inspect: interrupted"]
