"""Several engines on one disk root: claims, quota, reading each other's blocks."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenuto.errors import ConfigError
from tenuto.tiers.disk.instance import claim, file_system
from tenuto.tiers.disk.quota import Quota, used_bytes
from tenuto.tiers.store import Capacity
from tests.tiers.disk_fixtures import EXTENT, NAMESPACE, block, wait_until

pytestmark = pytest.mark.adapter


def test_two_living_engines_have_a_folder_each(open_disk):
    assert open_disk().folder.parent.name == "a"
    assert open_disk().folder.parent.name == "b"


def test_a_dead_engines_folder_is_taken_over(open_disk):
    first = open_disk()
    first.close()
    assert open_disk().folder == first.folder


def test_ranks_of_one_engine_share_an_instance(tmp_path):
    claims = [claim(tmp_path, NAMESPACE, "one engine", rank) for rank in (0, 1)]
    other = claim(tmp_path, NAMESPACE, "another", 0)
    assert [c.instance.name for c in (*claims, other)] == ["a", "a", "b"]
    assert [c.folder.name for c in claims] == ["rank-0", "rank-1"]
    for c in (*claims, other):
        os.close(c.lock_fd)


def test_a_killed_processes_claim_ends_with_it(tmp_path):
    script = f"""
import sys, time
sys.path[:0] = {sys.path!r}
from pathlib import Path
from tenuto.tiers.disk.instance import claim
from tests.tiers.disk_fixtures import NAMESPACE
print(claim(Path({str(tmp_path)!r}), NAMESPACE, "victim", 0).folder, flush=True)
time.sleep(600)
"""
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    folder = child.stdout.readline().strip()
    assert claim(tmp_path, NAMESPACE, "beside it", 0).folder.parent.name == "b"
    child.kill()
    child.wait()
    child.stdout.close()
    assert str(claim(tmp_path, NAMESPACE, "after it", 0).folder) == folder


def test_an_engine_that_gets_no_room_says_so_once_and_takes_it_when_there_is_some(
    tmp_path, open_disk, monkeypatch, our_log
):
    answers, has_room = [], Quota.has_room

    def noted(*given, **named):
        answers.append(has_room(*given, **named))
        return answers[-1]

    monkeypatch.setattr(Quota, "has_room", noted)
    monkeypatch.setattr("tenuto.tiers.disk.growth._RETRY_S", 0.01)
    first = open_disk()
    first.wait_slots(4)
    first.write(*((slot, slot) for slot in range(4)))
    first.wait_slots(8)
    second = open_disk(capacity=used_bytes(first.root) + 2 * EXTENT)
    wait_until(lambda: answers.count(False) > 3)
    assert second.store.capacity() == Capacity(0, is_growing=False)
    (line,) = [record.getMessage() for record in our_log()]
    assert line.startswith("tenuto: tiers.disk.capacity: all of it is taken by other engines (")
    assert f"under {tmp_path / 'root'}): nothing of this one is written until there is room" in line
    first.close()
    second.wait_slots(1)
    assert len(our_log()) == 1


def test_an_engine_reads_what_another_wrote_and_goes_on_hearing_of_it(open_disk):
    writer, reader = open_disk(), open_disk()
    writer.wait_slots(4)
    writer.write((0, 10))
    assert reader.store.peers.news() == {"a": [(0, block(10).key)]}
    assert reader.read(0, 10, "a") == "ok"
    writer.write((1, 11))
    assert reader.store.peers.news() == {"a": [(1, block(11).key)]}
    assert reader.store.peers.news() == {}
    assert reader.read(1, 11, "a") == "ok"


def test_a_slot_that_its_owner_reused_is_a_miss_for_the_reader(open_disk):
    writer, reader = open_disk(), open_disk()
    writer.wait_slots(4)
    writer.write((0, 10))
    reader.store.peers.news()
    writer.write((0, 20))
    assert reader.read(0, 10, "a") == "missing"


def test_an_instance_that_is_gone_is_a_miss(open_disk):
    assert open_disk().read(0, 10, "nowhere") == "missing"


def test_peers_with_other_file_sizes_are_read_right(open_disk):
    writer, reader = open_disk(file_slots=2), open_disk(file_slots=4)
    writer.wait_slots(2)
    writer.write((0, 10), (1, 11))
    writer.wait_slots(4)
    writer.write((2, 12), (3, 13))
    reader.store.peers.news()
    assert [reader.read(slot, 10 + slot, "a") for slot in range(4)] == ["ok"] * 4


def test_blocks_stored_after_a_reset_are_nobody_elses(open_disk):
    writer, reader = open_disk(), open_disk()
    writer.wait_slots(4)
    later = NAMESPACE.at_epoch(5)
    writer.store.reset(later.digest, later.epoch)
    writer.codec = writer.codec.__class__(writer.codec.layout, later.digest)
    writer.write((0, 10))
    assert reader.store.peers.news() == {}


def test_the_quota_bounds_all_engines_of_the_node_together(open_disk):
    capacity = 100 * EXTENT
    disks = [open_disk(capacity=capacity, n_arena=100) for _ in range(3)]

    def fill_up_to_the_end() -> bool:
        for at, disk in enumerate(disks):
            n = disk.store.capacity().n_slots
            disk.write(*((slot, 100 * at + slot) for slot in range(n)))
        return not any(disk.store.capacity().is_growing for disk in disks)

    wait_until(fill_up_to_the_end)
    assert 50 <= sum(disk.store.capacity().n_slots for disk in disks) <= 94  # manifests have their part
    assert used_bytes(disks[0].root) <= capacity


def test_folders_of_dead_engines_make_room_other_namespaces_first(open_disk, tmp_path, monkeypatch):
    def other(weights):
        return NAMESPACE.__class__(**{**NAMESPACE.describe(), "weights": weights})

    idle = [open_disk(namespace=other("idle")), open_disk(owner="same")]
    for disk in idle:
        disk.wait_slots(4)
        disk.write((0, 1), (1, 2), (2, 3))
        disk.wait_slots(8)
    living = open_disk()  # "b": the folder of "same" is still held
    living.wait_slots(4)
    for disk in idle:
        disk.close()
    quota = Quota(tmp_path / "root", used_bytes(tmp_path / "root") + EXTENT)
    assert not quota.has_room(6 * EXTENT, living.claim.instance, is_needed=False)  # they may be restarting
    monkeypatch.setattr("tenuto.tiers.disk.quota.GRACE_S", 0.0)
    assert quota.has_room(6 * EXTENT, living.claim.instance, is_needed=False)
    assert not idle[0].folder.exists()
    assert idle[1].folder.exists()
    assert living.folder.exists()
    assert quota.has_room(12 * EXTENT, living.claim.instance, is_needed=False)
    assert not idle[1].folder.exists()
    assert not quota.has_room(64 * EXTENT, living.claim.instance, is_needed=True)
    assert living.folder.exists()


def test_a_root_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^tiers\.disk\.path: can't write to .*choose another folder") as raised:
        claim(tmp_path / "file" / "root", NAMESPACE, "e", 0)
    assert "\n" not in str(raised.value)


def test_the_file_system_is_told_by_name(tmp_path):
    assert file_system(tmp_path) in ("ext4", "xfs", "btrfs", "overlay", "tmpfs")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_file_system_stops_growth_and_nothing_else(open_disk, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    size = 24 * EXTENT
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", root], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no mounts here: {mounted.stderr.decode().strip()}")
    try:
        disk = open_disk(capacity=1 << 40, file_slots=4)
        for slot in range(64):
            if slot < disk.store.capacity().n_slots:
                assert disk.write((slot, slot)) == []
            elif not disk.store.capacity().is_growing:
                break
            else:
                wait_until(lambda s=slot: disk.store.capacity().n_slots > s or not disk.store.capacity().is_growing)
                disk.write((slot, slot))
        n_slots = disk.store.capacity().n_slots
        assert 8 <= n_slots <= 22
        assert [disk.read(slot, slot) for slot in range(n_slots)] == ["ok"] * n_slots
        disk.close()
        assert len(open_disk(capacity=1 << 40).store.recovered) == n_slots
    finally:
        subprocess.run(["umount", "-l", root], check=False)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("name", ["write_bytes", "write_text", "replace"])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("is_there", [True, False])
def test_who_is_killed_while_it_claims_leaves_the_folder_to_the_next(open_disk, monkeypatch, name, at, is_there):
    """A note that was cut off kept all from taking the folder over, and its blocks went when there was no room."""
    if is_there:
        disk = open_disk(owner="first")
        disk.wait_slots(4)
        assert disk.write((0, 7), (1, 8)) == []
        disk.close()
    calls = []
    plain = getattr(Path, name)

    def torn(path, *given):
        if len(calls) == at:
            if name != "replace":
                path.open("wb").close()
            raise Killed
        calls.append(path)
        return plain(path, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Path, name, torn)
        with contextlib.suppress(Killed):
            open_disk(owner="killed").close()
    again = open_disk(owner="next")
    assert again.folder.parent.name == "a"
    if is_there:
        assert [again.read(slot, number) for slot, number in ((0, 7), (1, 8))] == ["ok", "ok"]
    assert not list(again.folder.parent.glob("*.new"))
    assert not list(again.folder.parent.parent.glob("*.new"))
