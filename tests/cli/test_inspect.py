"""`tenuto inspect` on real roots: living and dead engines, other formats, other people's files.

Living engines are those of this process, so the command runs in another.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest

from tenuto.cli.inspect import holders
from tenuto.cli.inspect.holders import Holder, holder_of, parse_locks
from tenuto.cli.inspect.survey import survey
from tenuto.cli.main import main
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.tiers.disk.instance import claim
from tests.tiers.disk_fixtures import EXTENT, NAMESPACE, Disk

pytestmark = pytest.mark.adapter


def tenuto_inspect(root, *options):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "tenuto.cli.main", "inspect", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def inspect(root, *options):
    """The exit code and the object."""
    done = tenuto_inspect(root, "--json", *options)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def ranks_of(found):
    return [rank for model in found["models"] for rank in model["ranks"]]


def everything(root):
    """All that a look must leave as it is."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted(root.rglob("*"))
    }


def test_it_tells_models_engines_blocks_tokens_and_bytes(open_disk, root):
    living, dead = open_disk(3), open_disk(2)
    dead.close()
    open_disk(1, namespace=replace(NAMESPACE, model="another", weights="others")).close()
    code, found = inspect(root)
    assert code == 0
    assert {model["identity"]["model"]: model["tokens"] for model in found["models"]} == {"m": 5 * 32, "another": 32}
    (ours,) = [model for model in found["models"] if model["identity"]["model"] == "m"]
    assert ours["namespace"] == living.folder.parent.parent.name
    for rank, disk, engine, n_blocks in zip(ours["ranks"], (living, dead), ("living", "dead"), (3, 2), strict=True):
        assert rank["path"] == str(disk.folder.relative_to(root))
        assert (rank["rank"], rank["engine"], rank["blocks"], rank["format"]) == (0, engine, n_blocks, "1")
        assert rank["used_bytes"] == n_blocks * EXTENT
        assert rank["allocated_bytes"] == sum(path.stat().st_size for path in disk.folder.glob("*.kv"))
        assert "2026" <= rank["oldest"] <= rank["newest"]
    assert found["strays"] == []
    assert found["verified"] is None


def test_a_look_changes_nothing_and_holds_no_lock(open_disk, root):
    living, dead = open_disk(), open_disk()
    dead.close()
    before = everything(root)
    code, found = inspect(root, "--verify")
    assert (code, found["verified"]["good"]) == (0, 6)
    assert everything(root) == before
    assert open_disk().folder == dead.folder  # it was free to be taken over
    assert living.read(0, 0) == "ok"


def test_ranks_of_one_engine_hold_parts_of_the_same_tokens(root):
    whole = Disk(root, owner="one")
    whole.wait_slots(4)
    whole.write((0, 0), (1, 1))
    other = claim(root, NAMESPACE, "one", 1)
    shutil.copytree(whole.folder, other.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock"))
    _, found = inspect(root)
    (model,) = found["models"]
    assert [(rank["rank"], rank["engine"], rank["blocks"]) for rank in model["ranks"]] == [
        (0, "living", 2), (1, "living", 2),
    ]  # fmt: skip
    assert model["tokens"] == 2 * 32
    os.close(other.lock_fd)
    whole.close()


def test_a_folder_of_another_format_is_one_line_and_the_rest_goes_on(open_disk, root):
    other, ours = open_disk(), open_disk()
    other.close()
    with sqlite3.connect(other.folder / "manifest.sqlite") as db:
        db.execute("UPDATE meta SET value = '7' WHERE key = 'format'")
    db.close()
    code, found = inspect(root, "--verify")
    first, second = ranks_of(found)
    assert (first["format"], first["fault"], first["blocks"]) == ("7", "format 7: this tenuto reads 1", 0)
    assert (second["blocks"], second["path"]) == (3, str(ours.folder.relative_to(root)))
    assert code == 0  # not damage
    assert found["verified"]["good"] == 3


@pytest.mark.parametrize(
    "statement",
    ["UPDATE meta SET value = 'other' WHERE key = 'namespace'", "DELETE FROM meta WHERE key = 'extent_bytes'",
     "UPDATE files SET number = 5 WHERE number = 0", "DROP TABLE blocks",
     "UPDATE meta SET value = '-5' WHERE key = 'extent_bytes'",
     f"UPDATE meta SET value = '{'9' * 400}' WHERE key = 'extent_bytes'",
     "UPDATE meta SET value = x'31' WHERE key = 'format'", "UPDATE meta SET value = x'303a32' WHERE key = 'layers'"],
)  # fmt: skip
def test_a_damaged_manifest_is_one_line_and_the_rest_goes_on(open_disk, root, statement):
    other = open_disk()
    open_disk()
    other.close()
    with sqlite3.connect(other.folder / "manifest.sqlite") as db:
        db.execute(statement)
    db.close()
    assert inspect(root)[0] == 0
    code, found = inspect(root, "--verify")
    damaged, good = ranks_of(found)
    assert damaged["is_unreadable"]
    assert damaged["fault"].count("\n") == 0
    assert good["blocks"] == found["verified"]["good"] == 3
    assert len(found["verified"]["unread"]) == 1
    assert code == 1  # its blocks could not be verified


def test_other_peoples_files_are_named(open_disk, root):
    disk = open_disk()
    home = disk.folder.parent.parent
    disk.close()
    paths = [root / "notes.txt", root / "backup", home / "x.tmp", disk.folder.parent / "rank-one", disk.folder / "core"]
    for path in paths:
        path.mkdir() if path.name == "backup" else path.write_bytes(b"x")
    (root / ("0" * 32)).symlink_to(home)
    (disk.folder / "pool-00077.kv").write_bytes(b"x")
    _, found = inspect(root)
    strays = {stray["path"]: stray["why"] for stray in found["strays"]}
    assert strays.pop(str((disk.folder / "pool-00077.kv").relative_to(root))).startswith("an unlisted pool file")
    assert strays == dict.fromkeys([*(str(path.relative_to(root)) for path in paths), "0" * 32], "not tenuto's")


def test_names_of_others_cannot_move_the_cursor(open_disk, root, capsys):
    open_disk().close()
    (root / "a\x1b[2Jb\n[red]c").touch()
    (root / os.fsdecode(b"\xff")).touch()
    assert main(["inspect", str(root)]) == 0
    shown = capsys.readouterr().out
    assert "a\\x1b[2Jb\\n[red]c: not tenuto's" in shown
    assert "\\udcff: not tenuto's" in shown


def test_nor_can_what_a_damaged_manifest_says(open_disk, root, capsys):
    disk = open_disk()
    disk.close()
    with sqlite3.connect(disk.folder / "manifest.sqlite") as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", ("\x1b[31m",))
    db.close()
    assert main(["inspect", str(root)]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["manifest.sqlite", "manifest.sqlite-wal", "pool-00000.kv"])
def test_a_pipe_in_the_place_of_a_file_is_damage_and_not_waited_for(open_disk, root, name):
    disk = open_disk()
    disk.close()
    (disk.folder / name).unlink(missing_ok=True)
    os.mkfifo(disk.folder / name)
    code, found = inspect(root, "--verify")
    assert (code, found["verified"]["good"]) == (1, 0)


@pytest.mark.parametrize("content", [None, "{}", '{"other":' + "[" * 200_000])
def test_what_does_not_name_the_model_is_told(open_disk, root, content):
    path = open_disk().folder.parent.parent / "namespace.json"
    path.unlink()
    os.mkfifo(path) if content is None else path.write_text(content)
    _, found = inspect(root)
    (model,) = found["models"]
    assert model["notes"][0].startswith("namespace.json is missing or not this folder's")


def test_pool_files_that_are_gone_or_cut_short_are_noted(open_disk, root):
    disk = open_disk(5)
    disk.close()
    os.truncate(disk.folder / "pool-00000.kv", EXTENT)
    (disk.folder / "pool-00001.kv").unlink()
    (rank,) = ranks_of(inspect(root)[1])
    assert rank["notes"][0].startswith(f"pool-00000.kv is cut short: {EXTENT:,} of ")
    assert rank["notes"][1] == "pool-00001.kv is gone: its blocks are misses"


def test_what_only_has_a_pool_files_name_hides_no_rank(open_disk, root):
    disk = open_disk()
    disk.close()
    (disk.folder / "pool-00007.kv").symlink_to("nowhere")
    (disk.folder / "pool-00008.kv").mkdir()
    (disk.folder / "pool-000000.kv").write_bytes(b"not file 0")
    (disk.folder.parent / "rank-00").mkdir()  # not rank 0
    code, found = inspect(root, "--verify")
    assert (code, found["verified"]["good"]) == (0, 3)
    strays = {stray["path"].rpartition("/")[2]: stray["why"] for stray in found["strays"]}
    assert strays["pool-00007.kv"] == strays["pool-00008.kv"] == "an unlisted pool file: it goes at the next start"
    assert strays["pool-000000.kv"] == strays["rank-00"] == "not tenuto's"


def test_a_folder_that_lost_something_and_is_still_there_was_not_removed(open_disk, root, monkeypatch):
    disk = open_disk()
    disk.close()

    def lose(folder):
        raise FileNotFoundError(2, "No such file or directory", str(folder / "x"))

    monkeypatch.setattr("tenuto.cli.inspect.survey.pool_file_sizes", lose)
    (model,) = survey(root, frozenset()).models
    assert (model.notes, model.ranks) == ([], [])
    assert model.unread == [f"{disk.folder.relative_to(root)} can't be read (No such file or directory)"]
    assert main(["inspect", str(root), "--verify"]) == 1


def test_blocks_of_a_reset_are_noted_and_verified(open_disk, root):
    disk = open_disk(1)
    later = NAMESPACE.at_epoch(77)
    disk.store.reset(later.digest, later.epoch)
    disk.codec = disk.codec.__class__(disk.codec.layout, later.digest)
    disk.write((1, 1), (2, 2))
    code, found = inspect(root, "--verify")
    (rank,) = ranks_of(found)
    assert rank["notes"][0].startswith("2 blocks were stored after a cache reset")
    assert (code, found["verified"]["bad"]) == (0, [])
    assert found["verified"]["good"] >= 2


def test_without_the_name_of_its_model_a_folder_is_shown_and_not_called_good(open_disk, root):
    disk = open_disk()
    (disk.folder.parent.parent / "namespace.json").write_text("{}")
    code, found = inspect(root, "--verify")
    (model,) = found["models"]
    assert (model["identity"], model["ranks"][0]["blocks"], found["verified"]["good"]) == (None, 3, 0)
    assert (code, len(found["verified"]["unread"])) == (1, 1)


def test_a_folder_just_claimed_has_no_manifest_and_is_not_damaged(root):
    mine = claim(root, NAMESPACE, "engine", 0)
    code, found = inspect(root, "--verify")
    (rank,) = ranks_of(found)
    assert (rank["fault"], rank["is_unreadable"], rank["engine"], code) == ("no manifest yet", False, "living", 0)
    os.close(mine.lock_fd)


def test_a_folder_that_cannot_be_read_is_one_line_and_the_rest_goes_on(open_disk, root, monkeypatch, capsys):
    first, second = open_disk(), open_disk()
    first.close()
    second.close()
    from tenuto.cli.inspect import survey as module

    read = module._survey_rank

    def refuse(root, model, folder, number, held):
        if folder == first.folder:
            raise PermissionError(13, "Permission denied", str(folder))
        return read(root, model, folder, number, held)

    monkeypatch.setattr(module, "_survey_rank", refuse)
    (model,) = survey(root, frozenset()).models
    assert [rank.folder for rank in model.ranks] == [second.folder]
    assert model.unread == [f"{first.folder.relative_to(root)} can't be read (Permission denied)"]
    assert main(["inspect", str(root), "--verify"]) == 1
    assert "can't be read (Permission denied)" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_read_only_file_system_is_read_even_where_an_engine_was_killed(open_disk, root, tmp_path):
    living = open_disk()
    mount = tmp_path / "mount"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount], check=False, capture_output=True)
    if made.returncode:
        pytest.skip(f"no mounts here: {made.stderr.decode().strip()}")
    try:
        shutil.copytree(root, mount / "left")  # with the log that a kill leaves
        assert (mount / "left" / living.folder.relative_to(root) / "manifest.sqlite-wal").exists()
        subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
        code, found = inspect(mount / "left", "--verify")
        assert (code, found["verified"]["good"], ranks_of(found)[0]["engine"]) == (0, 3, "dead")
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def make_rank(path):
    path.mkdir()
    for name in ("lock", "manifest.sqlite", "pool-00000.kv"):
        (path / name).touch()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "can't look into"),
        (lambda path: path.touch(), "can't look into"),
        (lambda path: path.mkdir(), "is empty"),
        (lambda path: (path / "models").mkdir(parents=True), "is no disk root of tenuto"),
        (make_rank, "is one rank's part"),
    ],
)
def test_what_is_no_root_is_one_line(tmp_path, capsys, make, words):
    make(tmp_path / "dir")
    assert main(["inspect", str(tmp_path / "dir")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tenuto inspect: DIR: ")
    assert words in line
    assert "tiers.disk.path" in line


def test_a_root_whose_engines_all_went_is_no_error(root, capsys):
    root.mkdir()
    (root / "lock").touch()
    assert main(["inspect", str(root)]) == 0
    assert "0 models, 0 blocks" in capsys.readouterr().out


def test_the_table_tells_people_the_same(open_disk, root):
    open_disk(3)
    shown = tenuto_inspect(root).stdout
    assert "1 model, 3 blocks, 60.0 KiB used of" in shown
    assert "float32, 2 layers, 2 KV heads, 32 tokens a block, format 1; 96 tokens in all" in shown
    assert any(line.split()[:3] == ["a/rank-0", "living", "3"] for line in shown.splitlines())


def test_locks_are_told_by_the_kernels_list(tmp_path):
    text = (
        "1: FLOCK  ADVISORY  WRITE 4242 fe:00:123 0 EOF\n"
        "1: -> FLOCK  ADVISORY  WRITE 4243 fe:00:124 0 EOF\n"
        "2: FLOCK  ADVISORY  READ 4242 fe:00:125 0 EOF\n"
        "3: POSIX  ADVISORY  WRITE 4242 fe:00:126 0 EOF\n"
        "4: OFDLCK ADVISORY  WRITE -1 fe:00:127 0 EOF\n\n"
    )
    assert parse_locks(text) == {(0xFE, 0, 123)}
    lock = tmp_path / "lock"
    assert holder_of(lock, frozenset()) is Holder.DEAD
    lock.touch()
    stat = lock.stat()
    assert holder_of(lock, {(os.major(stat.st_dev), os.minor(stat.st_dev), stat.st_ino)}) is Holder.LIVING
    assert holder_of(lock, {(os.major(stat.st_dev), os.minor(stat.st_dev) + 1, stat.st_ino)}) is Holder.DEAD


@pytest.mark.parametrize("file", ["fe:zz:5", "fe:00", "", "a:b:c:d", "-1:0:5", "00:00:" + "9" * 5000, "00:00:\u00b2"])
def test_a_lock_of_a_file_that_can_not_be_is_passed_over(file):
    good = "2: FLOCK  ADVISORY  WRITE 5 fe:00:123 0 EOF"
    assert parse_locks(f"1: FLOCK  ADVISORY  WRITE 5 {file} 0 EOF\n{good}\n") == {(0xFE, 0, 123)}


def test_where_the_kernel_does_not_say_the_engine_is_unknown(open_disk, root, capsys, monkeypatch, tmp_path):
    open_disk().close()
    monkeypatch.setattr(holders, "KERNEL_LOCKS", tmp_path / "none")
    assert main(["inspect", str(root), "--json"]) == 0
    (rank,) = ranks_of(json.loads(capsys.readouterr().out))
    assert rank["engine"] == "unknown"


def test_the_geometry_of_any_type_is_found_by_its_name(root):
    layout = ExtentLayout(32, (0, 2), (0, 2), 16, 16, Dtype.FLOAT8_E4M3FN)
    disk = Disk(root, layout=layout, namespace=replace(NAMESPACE, kv_dtype="float8_e4m3fn"))
    disk.wait_slots(2)
    disk.write((0, 0))
    code, found = inspect(root, "--verify")
    disk.close()
    assert (code, found["verified"]["good"]) == (0, 1)
