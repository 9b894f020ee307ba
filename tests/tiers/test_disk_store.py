"""The disk store on a real folder: what it keeps, what it finds again, what it refuses to serve."""

import os
import sqlite3
from contextlib import suppress

import pytest

from tenuto.errors import Cause, StoreError
from tenuto.memory.arena import HostArena
from tenuto.testing.files import BROKEN, DISK_FULL, READ_ONLY, FaultyFiles
from tenuto.tiers.disk.runtime import open_runtime
from tenuto.tiers.disk.runtime.direct import DirectFiles
from tenuto.tiers.store import SlotIO
from tests.tiers.disk_fixtures import EXTENT, LAYOUT, NAMESPACE, block, payload, wait_until

pytestmark = pytest.mark.adapter


@pytest.fixture(autouse=True, params=["queue", "threads"])
def way(request, monkeypatch):
    """What moves bytes: all of this is so by the kernel's queue and by threads."""
    if request.param == "threads":
        monkeypatch.setattr(DirectFiles, "open_queue", lambda *_: None)


def faulty(made, **faults):
    """Opens a runtime whose disk is faulty, and tells which."""

    def wrap(device):
        made.append(FaultyFiles(device))
        for name, value in faults.items():
            setattr(made[0], name, value)
        return made[0]

    return lambda folders, settings: open_runtime(f"file://{folders[0]}", settings, wrap)


def pool_file(disk, slot: int):
    number, index = disk.store._growth.slots.place(slot)
    return disk.folder / f"pool-{number:05d}.kv", index * EXTENT


def test_what_was_written_is_read_back_bit_for_bit(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    assert disk.write((0, 10), (3, 13)) == []
    assert disk.read(0, 10) == "ok"
    assert disk.read(3, 13) == "ok"


def test_an_empty_slot_is_no_block(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    assert disk.read(1, 11) == "corrupt"


def test_a_reopened_folder_holds_the_same_blocks_oldest_first(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    disk.write((2, 12))
    disk.write((0, 10), (1, 11))
    disk.close()
    again = open_disk()
    assert again.folder == disk.folder
    assert again.store.recovered == [(2, block(12).key), (0, block(10).key), (1, block(11).key)]
    assert [again.read(slot, 10 + slot) for slot in (0, 1, 2)] == ["ok"] * 3


def test_an_overwritten_slot_holds_the_new_block_only(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    disk.write((0, 10))
    disk.write((0, 20))
    assert disk.read(0, 10) == "corrupt"
    assert disk.read(0, 20) == "ok"
    disk.close()
    assert open_disk().store.recovered == [(0, block(20).key)]


def test_a_forgotten_block_stays_forgotten(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    disk.write((0, 10), (1, 11))
    disk.store.forget([0])
    disk.close()
    assert open_disk().store.recovered == [(1, block(11).key)]


def garbage_in_payload(file, at):
    file.seek(at + LAYOUT.header_bytes + 777)
    file.write(b"garbage")


def garbage_in_header(file, at):
    file.seek(at + 60)
    file.write(b"garbage")


def another_block_in_its_place(file, at):
    other = os.pread(file.fileno(), EXTENT, at + EXTENT)
    file.seek(at)
    file.write(other)


def cut_off(file, at):
    file.truncate(at + EXTENT // 2)


@pytest.mark.parametrize("harm", [garbage_in_payload, garbage_in_header, another_block_in_its_place, cut_off])
def test_a_damaged_extent_is_a_miss_now_and_after_reopening(open_disk, harm):
    disk = open_disk()
    disk.wait_slots(4)
    disk.write((1, 11), (2, 12))
    path, at = pool_file(disk, 1)
    with path.open("r+b") as file:
        harm(file, at)
    assert disk.read(1, 11) == "corrupt"
    disk.close()
    again = open_disk()
    assert again.read(1, 11) == "corrupt"
    again.write((1, 31))
    assert again.read(1, 31) == "ok"


def test_a_deleted_pool_file_costs_its_blocks_only(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    disk.write((0, 10))
    pool_file(disk, 0)[0].unlink()
    disk.close()
    again = open_disk()
    assert again.read(0, 10) == "corrupt"
    again.write((0, 20))
    assert again.read(0, 20) == "ok"


def test_a_pool_file_that_is_not_listed_is_deleted_when_the_folder_opens(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    disk.close()
    orphan = disk.folder / "pool-00099.kv"
    orphan.write_bytes(bytes(EXTENT))
    open_disk()
    assert not orphan.exists()


def test_a_destroyed_manifest_is_an_empty_folder_not_an_error(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    disk.write((0, 10))
    disk.close()
    (disk.folder / "manifest.sqlite").write_bytes(b"this is no database" * 1000)
    again = open_disk()
    assert again.store.recovered == []
    again.wait_slots(4)
    assert again.write((0, 20)) == []


def test_another_namespace_has_another_folder(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    disk.write((0, 10))
    other = open_disk(namespace=NAMESPACE.__class__(**{**NAMESPACE.describe(), "weights": "retrained"}))
    assert other.folder.parent.parent != disk.folder.parent.parent
    assert other.store.recovered == []


def test_a_reset_forgets_and_what_comes_after_it_dies_with_the_process(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    disk.write((0, 10))
    later = NAMESPACE.at_epoch(77)
    disk.store.reset(later.digest, later.epoch)
    assert disk.read(0, 10) == "corrupt"  # its header is of the namespace before the reset
    disk.codec = disk.codec.__class__(LAYOUT, later.digest)
    assert disk.write((1, 11)) == []
    assert disk.read(1, 11) == "ok"
    disk.close()
    assert open_disk().store.recovered == []


@pytest.mark.parametrize(
    ("number", "cause"), [(DISK_FULL, Cause.NO_SPACE), (READ_ONLY, Cause.IO_ERROR), (BROKEN, Cause.IO_ERROR)]
)
def test_a_refused_write_fails_its_blocks_and_lists_nothing(open_disk, number, cause):
    made = []
    disk = open_disk(runtime=faulty(made))
    disk.wait_slots(4)
    disk.write((0, 10))
    made[0].write_errno = number
    failures = disk.write((0, 20), (1, 21))
    assert [(f.index, f.cause) for f in failures] == [(0, cause), (1, cause)]
    made[0].write_errno = 0
    assert disk.write((2, 22)) == []
    disk.close()
    assert open_disk().store.recovered == [(2, block(22).key)]


def test_a_short_or_failing_read_fails_its_block(open_disk):
    made = []
    disk = open_disk(runtime=faulty(made))
    disk.wait_slots(4)
    disk.write((0, 10))
    made[0].short_read_bytes = EXTENT - 4096
    assert disk.read(0, 10) == "corrupt"
    made[0].short_read_bytes = None
    made[0].read_errno = BROKEN
    assert disk.read(0, 10) == "io_error"
    made[0].read_errno = 0
    assert disk.read(0, 10) == "ok"


def test_a_manifest_that_cannot_be_written_fails_the_batch(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    lock = sqlite3.connect(disk.folder / "manifest.sqlite", isolation_level=None)
    disk.store._manifest._db.execute("PRAGMA busy_timeout=1")
    lock.execute("BEGIN IMMEDIATE")
    failures = disk.write((0, 10))
    lock.execute("ROLLBACK")
    lock.close()
    assert [f.cause for f in failures] == [Cause.IO_ERROR]
    assert disk.write((0, 10)) == []


def test_files_are_added_before_the_last_slots_are_used_and_have_no_holes(open_disk):
    disk = open_disk(file_slots=4)
    disk.wait_slots(4)
    assert disk.store.capacity().n_slots == 4
    disk.write((0, 10), (1, 11), (2, 12))
    disk.wait_slots(8)
    for path in disk.folder.glob("pool-*.kv"):
        status = path.stat()
        assert status.st_size == 4 * EXTENT
        assert status.st_blocks * 512 >= status.st_size


def test_growth_that_failed_is_tried_again(open_disk, monkeypatch):
    monkeypatch.setattr("tenuto.tiers.disk.growth._RETRY_S", 0.01)
    made = []
    disk = open_disk(runtime=faulty(made, write_errno=DISK_FULL))
    wait_until(lambda: not disk.store.capacity().is_growing)
    assert disk.store.capacity().n_slots == 0
    made[0].write_errno = 0
    disk.wait_slots(4)
    assert disk.write((0, 10)) == []


def test_memory_that_is_attached_is_registered_once(open_disk):
    disk = open_disk()
    disk.wait_slots(4)
    files = MemoryWatch(disk.store.runtime.devices[0])
    disk.store.runtime.devices = (files,)
    disk.store.buffers.attach(disk.arena.view)
    assert disk.write((0, 0), (1, 1)) == []
    assert [disk.read(slot, slot) for slot in (0, 1)] == ["ok", "ok"]
    assert (files.n_attached, files.n_detached) == (1, 0)
    elsewhere = HostArena(1, EXTENT)
    assert disk.store.read([SlotIO(0, block(0).key, elsewhere.slot(0))]) == []
    assert bytes(elsewhere.slot(0)[disk.layout.header_bytes :]) == payload(block(0).key.hash)
    assert (files.n_attached, files.n_detached) == (2, 1)
    disk.store.buffers.detach()
    disk.store.buffers.detach()
    assert (files.n_attached, files.n_detached) == (2, 2)
    assert disk.read(1, 1) == "ok"


def test_memory_that_can_not_be_attached_is_registered_with_each_item(open_disk, monkeypatch, our_log):
    disk = open_disk()
    disk.wait_slots(4)

    def refuse(_):
        raise StoreError(Cause.IO_ERROR, "too large")

    with monkeypatch.context() as patch:
        patch.setattr(disk.store.runtime, "register_memory", refuse)
        disk.store.buffers.attach(disk.arena.view)
    assert our_log()[-1].getMessage() == "tenuto: file: host memory is registered with each block: too large"
    assert disk.write((0, 0)) == []
    assert disk.read(0, 0) == "ok"


class MemoryWatch:
    """Counts what is registered with a device."""

    def __init__(self, device):
        self._device = device
        self.n_attached = self.n_detached = 0

    def attach(self, region):
        self.n_attached += 1
        self._device.attach(region)

    def detach(self, region):
        self.n_detached += 1
        self._device.detach(region)

    def __getattr__(self, name):
        return getattr(self._device, name)


def test_a_buffer_that_the_runtime_does_not_take_costs_its_block_alone(open_disk, monkeypatch):
    disk = open_disk()
    disk.wait_slots(4)
    assert disk.write((0, 0), (1, 1), (2, 2)) == []
    disk.wait_slots(8)  # the store grows no more
    items = [disk.fill(slot, slot) for slot in range(3)]
    plain, asked = disk.store.runtime.register_memory, []

    def refuse(memory):
        asked.append(memory)
        if len(asked) == 2:
            raise StoreError(Cause.IO_ERROR, "no more")
        return plain(memory)

    monkeypatch.setattr(disk.store.runtime, "register_memory", refuse)
    (failure,) = disk.store.read(items)
    assert (failure.index, failure.cause) == (1, Cause.IO_ERROR)
    assert disk.store.runtime._books.regions() == []


def test_a_store_that_was_closed_has_nothing(open_disk):
    """An engine's last transfers may come to it when it has ended."""
    disk = open_disk()
    disk.wait_slots(4)
    assert disk.write((0, 0)) == []
    disk.close()
    assert disk.read(0, 0) == "missing"


def test_a_manifest_on_a_full_disk_counts_what_it_lists(open_disk):
    disk = open_disk(n_arena=1)
    manifest = disk.store._manifest
    disk.write((0, 10))
    (pages,) = manifest._db.execute("PRAGMA page_count").fetchone()
    manifest._db.execute(f"PRAGMA max_page_count={pages}")
    for first in range(0, 4000, 400):
        with suppress(StoreError):
            manifest.insert([(slot, block(slot).key) for slot in range(first + 1, first + 401)], 0)
    (n_listed,) = manifest._db.execute("SELECT count(*) FROM blocks").fetchone()
    assert manifest.n_blocks == n_listed < 4000
