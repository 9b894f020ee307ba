"""Distances on a made-up bus: two sockets with four GPUs and four disks each, and odder machines."""

import os
from pathlib import Path

import pytest

from tenuto.cli.doctor.bus import check_topology, shares
from tenuto.cli.doctor.finding import Status
from tenuto.tiers.disk.topology import (
    Distance,
    PciDevice,
    Topology,
    choose_pools,
    disks_under,
    distance,
    read_topology,
)

pytestmark = pytest.mark.unit

FIVE, FOUR = ("32.0 GT/s PCIe", "16"), ("16.0 GT/s PCIe", "4")


class Sys:
    """A `/sys` of one's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bus/pci/devices", "block", "dev/block", "devices"):
            (root / folder).mkdir(parents=True)

    def pci(self, path: str, node: int, link=("", ""), **files: str) -> Path:
        folder = self.root / "devices" / path
        folder.mkdir(parents=True, exist_ok=True)
        known = {"numa_node": str(node), "max_link_speed": link[0], "max_link_width": link[1], **files}
        for name, text in known.items():
            (folder / name).write_text(text + "\n")
        (self.root / "bus/pci/devices" / folder.name).symlink_to(folder)
        return folder

    def gpu(self, path: str, node: int) -> None:
        self.pci(path, node, FIVE, vendor="0x10de", **{"class": "0x030200"})

    def disk(self, path: str, node: int, name: str, number="259:0", link=FOUR) -> Path:
        folder = self.pci(path, node, link, vendor="0x144d", **{"class": "0x010802"})
        block = folder / "nvme" / name.rsplit("n", 1)[0] / name
        block.mkdir(parents=True)
        (block / "removable").write_text("0\n")
        (self.root / "block" / name).symlink_to(block)
        (self.root / "dev/block" / number).symlink_to(block)
        return block


@pytest.fixture
def sys(tmp_path):
    return Sys(tmp_path / "sys")


def two_sockets(sys: Sys) -> None:
    """Each GPU with its own disk behind one switch; four such pairs a socket."""
    for socket in range(2):
        for pair in range(4):
            bus = 0x10 + 0x80 * socket + 0x10 * pair
            root = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
            sys.gpu(f"{root}/0000:{bus + 2:02x}:00.0/0000:{bus + 3:02x}:00.0", socket)
            name = f"nvme{4 * socket + pair}n1"
            sys.disk(
                f"{root}/0000:{bus + 2:02x}:01.0/0000:{bus + 4:02x}:00.0", socket, name, f"259:{4 * socket + pair}"
            )


def test_each_gpu_of_two_sockets_has_its_own_disk(sys):
    two_sockets(sys)
    found = read_topology(sys.root)
    assert [len(found.gpus), len(found.disks)] == [8, 8]
    spans = [[distance(gpu, disk).value for disk in found.disks] for gpu in found.gpus]
    assert spans[1] == [1, 0, 1, 1, 2, 2, 2, 2]
    assert spans[6] == [2, 2, 2, 2, 1, 1, 0, 1]
    assert [[disk.name for disk in found.pool(gpu)] for gpu in found.gpus] == [[f"nvme{n}n1"] for n in range(8)]
    assert found.predicted_gb_s(found.gpus[3]) == pytest.approx(16 * 4 / 8 * 128 / 130)
    assert found.predicted_gb_s(found.gpus[3], {"nvme3n1": 6.5, "nvme2n1": 1.0}) == 6.5


def one_bus_a_socket(sys: Sys) -> None:
    """Four GPUs and four disks a socket, each on a root port of its own."""
    for socket in range(2):
        bus = 0x10 + 0x80 * socket
        for port in range(4):
            root = f"pci0000:{bus:02x}/0000:{bus:02x}:0{port + 1}.0"
            sys.gpu(f"{root}/0000:{bus + 1 + port:02x}:00.0", socket)
            root = f"pci0000:{bus:02x}/0000:{bus:02x}:1{port + 1}.0"
            number = 4 * socket + port
            sys.disk(f"{root}/0000:{bus + 0x20 + port:02x}:00.0", socket, f"nvme{number}n1", f"259:{number}")


def test_gpus_that_share_the_disks_of_a_socket_share_their_rate(sys):
    one_bus_a_socket(sys)
    found = read_topology(sys.root)
    assert {distance(gpu, disk) for gpu in found.gpus for disk in found.disks} == {Distance.NODE, Distance.FAR}
    assert [disk.name for disk in found.pool(found.gpus[5])] == ["nvme4n1", "nvme5n1", "nvme6n1", "nvme7n1"]
    assert found.predicted_gb_s(found.gpus[5], dict.fromkeys(("nvme4n1", "nvme5n1", "nvme6n1", "nvme7n1"), 6.0)) == 6.0


def test_more_disks_than_a_link_carries_are_bounded_by_it():
    gpu = PciDevice("gpu", "0000:01:00.0", ("0000:00:01.0",), 0, 60.0)
    disks = tuple(PciDevice(f"d{n}", f"0000:0{n}:00.0", ("0000:00:01.0",), 0, 14.0) for n in range(2, 8))
    assert Topology((gpu,), disks).predicted_gb_s(gpu) == 60.0
    assert Topology((gpu,), disks[:2]).predicted_gb_s(gpu) == 28.0
    assert Topology((gpu,), ()).predicted_gb_s(gpu) == 0.0


def test_ranks_take_the_nearest_pool_and_spread_over_equal_ones(sys):
    two_sockets(sys)
    found = read_topology(sys.root)
    gpus = [gpu.address for gpu in found.gpus]
    own = {f"/disk{n}": [f"nvme{n}n1"] for n in range(8)}
    assert list(choose_pools(found, gpus, own).values()) == [f"/disk{n}" for n in range(8)]
    few = {"/a": ["nvme1n1"], "/b": ["nvme2n1"], "/c": ["nvme7n1"]}
    assert list(choose_pools(found, gpus, few).values()) == ["/a", "/a", "/b", "/b", "/c", "/c", "/c", "/c"]
    assert choose_pools(found, ["0000:ff:00.0"] * 1, few) == {"0000:ff:00.0": "/a"}
    raid = {"/both": ["nvme0n1", "nvme4n1"], "/near": ["nvme1n1"]}
    assert choose_pools(found, gpus[:1], raid) == {gpus[0]: "/near"}


def test_a_folder_is_traced_to_its_disks(sys, tmp_path, monkeypatch):
    two_sockets(sys)
    number = tmp_path.stat().st_dev
    own = f"{os.major(number)}:{os.minor(number)}"
    (sys.root / "dev/block" / own).unlink(missing_ok=True)
    partition = (sys.root / "block/nvme2n1").resolve() / "nvme2n1p1"
    partition.mkdir()
    (partition / "partition").write_text("1\n")
    (sys.root / "dev/block" / own).symlink_to(partition)
    assert disks_under(tmp_path, sys.root) == ["nvme2n1"]
    raid = sys.root / "devices/virtual/block/md0"
    (raid / "slaves").mkdir(parents=True)
    for name in ("nvme5n1", "nvme4n1"):
        (raid / "slaves" / name).symlink_to((sys.root / "block" / name).resolve())
    (sys.root / "dev/block" / own).unlink()
    (sys.root / "dev/block" / own).symlink_to(raid)
    assert disks_under(tmp_path, sys.root) == ["nvme4n1", "nvme5n1"]
    (sys.root / "dev/block" / own).unlink()
    assert disks_under(tmp_path, sys.root) == []
    assert disks_under(tmp_path / "nothing", sys.root) == []


def test_what_is_no_disk_of_the_bus_is_left_out(sys):
    for path, removable in (("virtual/block/loop0", "0"), ("pci0000:00/0000:00:1f.2/ata1/block/sr0", "1")):
        folder = sys.root / "devices" / path
        folder.mkdir(parents=True)
        (folder / "removable").write_text(removable)
        (sys.root / "block" / folder.name).symlink_to(folder)
    assert read_topology(sys.root) == Topology()


def test_a_namespace_of_several_controllers_is_found_on_the_bus(sys):
    block = sys.disk("pci0000:10/0000:10:01.0/0000:11:00.0", 1, "nvme3n1", "259:9")
    (sys.root / "block/nvme3n1").unlink()
    shared = sys.root / "devices/virtual/nvme-subsystem/nvme-subsys3"
    (shared / "nvme3n1").mkdir(parents=True)
    (shared / "nvme3").symlink_to(block.parent)
    (sys.root / "block/nvme3n1").symlink_to(shared / "nvme3n1")
    (disk,) = read_topology(sys.root).disks
    assert (disk.name, disk.address, disk.node) == ("nvme3n1", "0000:11:00.0", 1)


def test_the_hidden_paths_of_such_a_namespace_are_no_disks(sys):
    """The kernel shows one for each controller."""
    block = sys.disk("pci0000:10/0000:10:01.0/0000:11:00.0", 1, "nvme3c3n1", "259:9")
    (block / "hidden").write_text("1\n")
    assert read_topology(sys.root).disks == ()
    (block / "hidden").write_text("0\n")
    assert len(read_topology(sys.root).disks) == 1


@pytest.mark.parametrize(
    ("node", "link"),
    [
        ("", ("", "")),
        ("\u00b2", ("1.2.3 GT/s", "\u00b2")),
        ("--1", ("9" * 400 + " GT/s", "x")),
        ("-1", ("16.0 GT/s", "-4")),
    ],
)
def test_what_the_kernel_does_not_tell_is_not_known(sys, node, link):
    sys.disk("pci0000:10/0000:11:00.0", node, "nvme0n1", link=link)
    (disk,) = read_topology(sys.root).disks
    assert (disk.node, disk.link_gb_s) == (-1, 0.0)


def test_disks_of_a_raid_share_the_rate_that_was_measured():
    assert shares(["nvme0n1", "nvme1n1"], 10.0) == {"nvme0n1": 5.0, "nvme1n1": 5.0}
    assert shares([], 10.0) == {}


def test_a_machine_without_a_bus_has_nothing(tmp_path):
    assert read_topology(tmp_path) == Topology()


@pytest.mark.parametrize(
    ("link", "gb_s"),
    [(FIVE, 63.0), (FOUR, 7.9), (("5.0 GT/s PCIe", "4"), 2.0), (("Unknown", "63"), 0.0), (("", ""), 0.0)],
)
def test_the_rate_of_a_link_is_that_of_its_lanes(sys, link, gb_s):
    sys.disk("pci0000:10/0000:10:01.0/0000:11:00.0", 0, "nvme0n1", link=link)
    assert read_topology(sys.root).disks[0].link_gb_s == pytest.approx(gb_s, abs=0.05)


def test_the_doctor_prints_the_matrix(sys):
    two_sockets(sys)
    head, *lines = check_topology(read_topology(sys.root), {"nvme0n1": 6.9})
    assert "8 GPUs, 8 disks" in head.text
    assert lines[0].name == "GPU 0000:13:00.0"
    assert lines[0].text.startswith("nvme0n1 0, nvme1n1 1, nvme2n1 1, nvme3n1 1, nvme4n1 2")
    assert lines[0].text.endswith("nearest: nvme0n1, at most 6.9 GB/s")
    assert lines[1].text.endswith("nearest: nvme1n1, at most 7.9 GB/s")
    assert {line.status for line in lines} == {Status.OK}


def test_the_doctor_warns_of_a_gpu_whose_disks_are_all_far():
    far = Topology((PciDevice("g", "0000:01:00.0", (), 0, 60.0),), (PciDevice("sda", "0000:81:00.0", (), 1, 0.0),))
    (_, line) = check_topology(far, {})
    assert line.status is Status.WARN
    assert "its rate is unknown" in line.text
    assert check_topology(Topology(), {})[0].text == "no GPU on the bus"
    assert check_topology(Topology(far.gpus), {})[0].text == "no disk on the bus"
