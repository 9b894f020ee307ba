"""A disk store over several folders: quota, restart, peers, removal, and folders that are not what they were."""

import logging
import os
import shutil
from pathlib import Path

import pytest

from tenuto.config import load_config
from tenuto.connectors.session.setup import Setup
from tenuto.connectors.session.worker import open_disk
from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.memory.driver import DriverError
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.tiers.disk import quota as quota_module
from tenuto.tiers.disk import volume as volume_module
from tenuto.tiers.disk.instance import claim
from tenuto.tiers.disk.quota import Quota, used_bytes
from tenuto.tiers.disk.topology import PciDevice, Topology
from tenuto.tiers.disk.volume import describe, tell_distance, volume_of
from tests.tiers.disk_fixtures import NAMESPACE, Disk, block, wait_until

pytestmark = pytest.mark.adapter

LAYOUT = ExtentLayout(32, (0, 4), (0, 4), 512, 256, Dtype.FLOAT32)  # over a unit: an extent lies on two disks or more
EXTENT = LAYOUT.extent_bytes


@pytest.fixture
def roots(tmp_path):
    return tmp_path / "root", (tmp_path / "x", tmp_path / "y")


@pytest.fixture
def open_striped(roots):
    opened = []

    def open_one(**options):
        root, others = roots
        given = {"others": others, "layout": LAYOUT, "capacity": 64 * EXTENT, "n_arena": 32, **options}
        opened.append(Disk(root, **given))
        return opened[-1]

    yield open_one
    for disk in opened:
        disk.close()


def parts_of(roots, pattern="*/*/rank-0/pool-*.kv"):
    root, others = roots
    return [sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern)) for folder in (root, *others)]


def test_blocks_lie_on_all_folders_and_are_there_after_a_restart(open_striped, roots):
    disk = open_striped()
    for slot in range(8):
        disk.wait_slots(slot + 1)
        assert disk.write((slot, slot)) == []
    disk.close()
    first, *others = parts_of(roots)
    assert first
    assert all(part == first for part in others)
    assert all(path.stat().st_blocks for folder in roots[1] for path in folder.glob("*/*/rank-0/pool-00000.kv"))
    again = open_striped()
    assert again.folder == disk.folder
    assert sorted(slot for slot, _ in again.store.recovered) == list(range(8))
    assert [again.read(slot, slot) for slot in range(8)] == ["ok"] * 8
    assert not list(roots[1][0].glob("**/*lock*"))
    assert not list(roots[1][0].glob("**/*sqlite*"))


def test_peers_read_each_others_stripes(open_striped):
    writer, reader = open_striped(), open_striped()
    writer.wait_slots(4)
    writer.write((0, 10), (3, 13))
    assert reader.store.peers.news() == {"a": [(0, block(10).key), (3, block(13).key)]}
    assert [reader.read(0, 10, "a"), reader.read(3, 13, "a"), reader.read(3, 14, "a")] == ["ok", "ok", "missing"]


def test_the_quota_counts_all_folders(open_striped, roots):
    disk = open_striped(capacity=24 * EXTENT, file_slots=2)
    wait_until(lambda: disk.write((0, 0)) == [] if disk.store.capacity().n_slots else False)

    def fill():
        n = disk.store.capacity().n_slots
        disk.write(*((slot, slot) for slot in range(n)))
        return not disk.store.capacity().is_growing

    wait_until(fill)
    root, others = roots
    used = used_bytes(root, *others)
    assert 16 * EXTENT < used <= 24 * EXTENT
    assert used == sum(p.stat().st_size for f in (root, *others) for p in f.glob("*/**/*") if p.is_file())
    n_slots = disk.store.capacity().n_slots
    disk.close()
    smaller = open_striped(capacity=n_slots // 2 * EXTENT)
    assert used_bytes(root, *others) <= n_slots // 2 * EXTENT
    kept = [slot for slot, _ in smaller.store.recovered]
    assert 0 < len(kept) < n_slots
    assert [smaller.read(slot, slot) for slot in kept] == ["ok"] * len(kept)
    smaller.close()
    first, *rest = parts_of(roots)
    assert all(part == first for part in rest)


def test_room_is_what_all_folders_have_together_and_the_fullest_bounds_it(roots, monkeypatch):
    root, others = roots
    for folder in (root, *others):
        folder.mkdir()
    free = dict.fromkeys((root, *others), 300)
    device = {root: 1, others[0]: 2, others[1]: 3}
    stat, statvfs = Path.stat, os.statvfs

    class Found:
        def __init__(self, folder):
            self.f_bavail, self.f_blocks, self.f_frsize, self.st_dev = free[folder], 0, 4096, device[folder]

    monkeypatch.setattr(os, "statvfs", lambda path: Found(path) if path in free else statvfs(path))
    monkeypatch.setattr(
        Path, "stat", lambda path, **how: Found(path) if path in free and not how else stat(path, **how)
    )
    assert quota_module._free_or_ours((root, *others)) == 900 * 4096
    free[others[1]] = 100
    assert quota_module._free_or_ours((root, *others)) == 300 * 4096
    assert quota_module._free_or_ours((root,)) == 300 * 4096
    device[others[1]] = 2  # two folders of one disk share what it has
    free[others[0]] = 100
    assert quota_module._free_or_ours((root, *others)) == 150 * 4096


def test_a_dead_engines_parts_go_from_all_folders(open_striped, roots, monkeypatch):
    root, others = roots
    idle = open_striped(namespace=NAMESPACE.__class__(**{**NAMESPACE.describe(), "weights": "idle"}))
    living = open_striped()
    for disk in (idle, living):
        disk.wait_slots(4)
        disk.write((0, 1))
    idle.close()
    monkeypatch.setattr("tenuto.tiers.disk.quota.GRACE_S", 0.0)
    quota = Quota(root, used_bytes(root, *others) + EXTENT, others)
    assert quota.has_room(4 * EXTENT, living.claim.instance, is_needed=False)
    name = idle.claim.instance.parent.name
    assert not any((folder / name).exists() for folder in (root, *others))
    assert living.read(0, 1) == "ok"


def test_what_a_killed_removal_left_goes_at_the_next_start(open_striped, roots):
    disk = open_striped()
    disk.wait_slots(4)
    disk.close()
    shutil.rmtree(disk.claim.instance)  # by hand, or half of it by a kill
    again = open_striped(namespace=NAMESPACE.__class__(**{**NAMESPACE.describe(), "weights": "other"}))
    again.wait_slots(4)
    again.close()
    first, *others = parts_of(roots)
    assert all(name.startswith(again.claim.instance.parent.name) for part in others for name in part)
    assert all(part == first for part in others)


def test_a_part_that_is_lost_costs_its_blocks_alone(open_striped, roots):
    disk = open_striped(file_slots=2)
    for slot in range(4):
        disk.wait_slots(slot + 1)
        disk.write((slot, slot))
    disk.close()
    (lost,) = roots[1][1].glob("*/*/rank-0/pool-00000.kv")
    lost.unlink()
    again = open_striped(file_slots=2)
    assert "corrupt" in {again.read(slot, slot) for slot in (0, 1)} <= {"corrupt", "ok"}  # never wrong bytes
    assert {again.read(slot, slot) for slot in (2, 3)} == {"ok"}


def setup_of(roots, **disk):
    root, others = roots
    given = {"path": str(root), "runtime": "striped", "stripes": [str(folder) for folder in others], **disk}
    config = load_config({"tiers": {"disk": {"capacity": 64 * EXTENT, **given}}})
    return Setup(config, NAMESPACE, LAYOUT, 32, "engine")


def opened(setup):
    return open_disk(setup, 0, ExtentCodec(LAYOUT, NAMESPACE.digest))


def everything(*folders):
    paths = [path for folder in folders for path in folder.glob("**/*") if path.name != "lock"]
    return {path: path.stat().st_mtime_ns for path in paths}


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("has_mount_point", [False, True])
def test_a_folder_that_is_gone_is_one_line_and_the_tier_is_off(open_striped, roots, our_log, which, has_mount_point):
    root, others = roots
    disk = open_striped()
    disk.wait_slots(4)
    disk.write((0, 0))
    disk.close()
    folders = [root, *others]
    gone = folders.pop(which)
    gone.rename(gone.with_name("away"))
    if has_mount_point:
        gone.mkdir()
    before = everything(*folders)
    our_log().clear()
    assert opened(setup_of(roots)) is None
    (record,) = our_log()
    assert record.levelno == logging.WARNING
    assert f"{gone} is not the folder of the stripe that it was: is its disk mounted?" in record.getMessage()
    assert "\n" not in record.getMessage()
    after = everything(*folders)
    assert before.keys() <= after.keys()
    if gone.exists():
        shutil.rmtree(gone)
    gone.with_name("away").rename(gone)
    store = opened(setup_of(roots))
    assert len(store.recovered) == 1
    store.close()


def test_a_disk_that_goes_under_a_running_engine_is_not_made_anew(open_striped, roots):
    disk = open_striped(file_slots=2)
    disk.wait_slots(2)
    roots[1][0].rename(roots[1][0].with_name("away"))
    with pytest.raises(StoreError):
        disk.store.runtime.reserve("a/rank-0/pool-99999.kv", EXTENT)
    assert not roots[1][0].exists()


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        ({"runtime": "file", "stripes": []}, r"^tiers\.disk\.path: .*/root is folder 1 of a stripe over .*/x, .*/y; "),
        ({"stripes": ["{y}", "{x}"]}, r"^tiers\.disk\.stripes: .*/y was number 3 of 3 .*give the folders as before"),
        ({"stripes": ["{x}"]}, r"^tiers\.disk\.stripes: .*/root was number 1 of 3"),
        ({"path": "{x}", "runtime": "file", "stripes": []}, r"^tiers\.disk\.path: .*/x is folder 2 of a stripe"),
    ],
)
def test_folders_that_were_used_otherwise_are_refused(open_striped, roots, disk, words):
    open_striped().close()
    names = {"x": str(roots[1][0]), "y": str(roots[1][1])}
    given = {
        key: [part.format(**names) for part in value] if isinstance(value, list) else value.format(**names)
        for key, value in disk.items()
    }
    before = everything(roots[0], *roots[1])
    with pytest.raises(ConfigError, match=words) as caught:
        opened(setup_of(roots, **given))
    assert "\n" not in str(caught.value)
    assert everything(roots[0], *roots[1]) == before


def test_a_folder_with_blocks_that_are_not_striped_is_refused(tmp_path, roots):
    disk = Disk(roots[0])
    disk.close()
    with pytest.raises(ConfigError, match=r"/root holds files that are not striped; give an empty folder, or empty it"):
        opened(setup_of(roots))
    assert not [path for folder in roots[1] for path in folder.glob("*")]


def test_a_folder_that_is_there_twice_is_refused(roots):
    with pytest.raises(ConfigError, match=r"^tiers\.disk\.stripes: a folder is there twice"):
        opened(setup_of(roots, stripes=[str(roots[1][0]), f"{roots[0]}/."]))


@pytest.mark.parametrize("runtime", ["nixl+posix", "nixl+gds", "nixl+gds_mt", "cufile"])
def test_a_library_that_is_not_there_is_one_line(roots, monkeypatch, runtime):
    monkeypatch.setattr("tenuto.tiers.disk.volume.what_is_missing", lambda: {runtime: "the thing is missing"})
    with pytest.raises(ConfigError) as caught:
        opened(setup_of(roots, runtime=runtime, stripes=[]))
    assert str(caught.value) == (
        f'tiers.disk.runtime: "{runtime}" does not work here: the thing is missing; or use "file"'
    )
    assert not roots[0].exists()


def test_a_library_that_is_there_gets_the_folder(roots, monkeypatch):
    seen = []

    def opener(url, settings):
        seen.append(url)
        raise ConfigError("nixl+gds: does not start")

    monkeypatch.setattr("tenuto.tiers.disk.volume.what_is_missing", lambda: {"nixl+gds": ""})
    monkeypatch.setattr("tenuto.tiers.disk.volume.open_runtime", opener)
    with pytest.raises(ConfigError, match=r"^tiers\.disk\.runtime: nixl\+gds: does not start$"):
        opened(setup_of(roots, runtime="nixl+gds", stripes=[]))
    assert seen == [f"nixl+gds://{roots[0] / NAMESPACE.folder}"]
    os.close(claim(roots[0], NAMESPACE, "another", 0).lock_fd)


def test_the_volume_of_a_striped_tier(roots):
    volume = volume_of(setup_of(roots).config.tiers.disk)
    assert (volume.root, volume.others) == roots


def test_how_far_a_ranks_disks_are_is_told_with_what_to_expect():
    gpus = tuple(PciDevice(f"gpu{n}", f"0000:{n}0:00.0", (f"switch{n}",), n, 63.0) for n in range(2))
    disks = tuple(PciDevice(f"nvme{n}n1", f"0000:{n}1:00.0", (f"switch{n}",), n, 15.8) for n in range(2))
    line = describe(Topology(gpus, disks), gpus[1].address, ["nvme0n1", "nvme1n1", "loop0"])
    assert line == (
        "nvme0n1 at distance 2, nvme1n1 at distance 0 from GPU 0000:10:00.0; "
        "at most 15.8 GB/s when all 2 GPUs read at once"
    )
    assert describe(Topology(gpus, disks), gpus[0].address, ["loop0"]) == ""
    assert describe(Topology(), gpus[0].address, ["nvme0n1"]) == ""


def test_a_note_that_is_no_note_is_refused(open_striped, roots):
    open_striped().close()
    (roots[1][0] / "stripe.json").write_text('{"stripe":"x","index":7,"folders":["a"],"unit_bytes":4096}')
    with pytest.raises(ConfigError, match="has no place 7; restore it, or empty all folders of the stripe"):
        opened(setup_of(roots))
    (roots[0] / "stripe.json").write_text("[")
    with pytest.raises(StoreError) as caught:
        Disk(roots[0])
    assert caught.value.cause is Cause.CORRUPT


def test_the_distance_is_told_at_start_where_there_is_a_gpu(roots, monkeypatch, our_log):
    class Driver:
        fails = False

        def pci_address(self):
            if self.fails:
                raise DriverError("cuCtxGetDevice", 201, "CUDA_ERROR_INVALID_CONTEXT")
            return "0000:11:00.0"

    volume, driver = volume_of(setup_of(roots).config.tiers.disk), Driver()
    gpu = PciDevice("gpu", "0000:11:00.0", ("switch",), 0, 63.0)
    topology = Topology((gpu,), (PciDevice("nvme0n1", "0000:12:00.0", ("switch",), 0, 15.8),))
    monkeypatch.setattr(volume_module, "read_topology", lambda: topology)
    monkeypatch.setattr(volume_module, "disks_under", lambda folder: ["nvme0n1"] if folder in roots[1] else [])
    tell_distance(volume, 3, None)
    driver.fails = True
    tell_distance(volume, 3, driver)
    assert our_log() == []
    driver.fails = False
    tell_distance(volume, 3, driver)
    assert [record.getMessage() for record in our_log()] == [
        "tenuto: disk tier of rank 3: nvme0n1 at distance 0 from GPU 0000:11:00.0; at most 15.8 GB/s"
    ]
