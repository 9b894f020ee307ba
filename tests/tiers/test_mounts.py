"""Which mount a folder lies on, by the kernel's list."""

import os
from pathlib import Path

import pytest

from tenuto.tiers.disk import instance
from tenuto.tiers.disk.instance import is_network, mount_of

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def mounts(monkeypatch, tmp_path):
    """The list of a machine with network mounts of all sorts of names."""
    lines = [
        b"1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/a rw",
        b"2 1 0:50 / /mnt/my\\040kv rw - nfs4 srv:/x rw",
        b"3 1 0:51 / /mnt/back\\134slash\\012line rw - nfs4 srv:/y rw",
        b"4 1 0:52 / /mnt/\xff\xc2\xa0\x1c\r\f rw - fuse.sshfs srv:/z rw",
    ]
    monkeypatch.setattr(instance, "MOUNTS", tmp_path / "mountinfo")
    instance.MOUNTS.write_bytes(b"\n".join(lines) + b"\n")


def test_the_nearest_mount_above_a_folder_is_its():
    assert mount_of(Path("/mnt/my")).device == (8, 1)
    assert mount_of(Path("/mnt/my kv")).device == mount_of(Path("/mnt/my kv/tenuto")).device == (0, 50)
    assert not is_network(Path("/mnt/my kv2"))


@pytest.mark.parametrize("folder", ["/mnt/my kv", "/mnt/back\\slash\nline", os.fsdecode(b"/mnt/\xff\xc2\xa0\x1c\r\f")])
def test_names_are_as_the_file_system_has_them(folder):
    assert mount_of(Path(folder) / "tenuto").folder == folder
    assert is_network(Path(folder) / "tenuto")


@pytest.mark.parametrize(
    "odd",
    [b"", b" - ", b"1 0 8:1 / /mnt", b"1 0 what / /mnt rw - nfs x rw", b"1 0 8:1 / /mnt rw nfs x rw", b"\xff" * 9],
)
def test_a_line_that_is_none_is_passed_over(odd):
    instance.MOUNTS.write_bytes(odd + b"\n" + instance.MOUNTS.read_bytes() + odd)
    assert mount_of(Path("/mnt/my")).kind == "ext4"
    assert mount_of(Path("/mnt/my kv")).kind == "nfs4"


def test_where_the_kernel_shows_no_mounts_nothing_is_known_of_them():
    instance.MOUNTS.unlink()
    assert mount_of(Path("/mnt")) == instance.Mount("", "unknown", (0, 0))
    assert not is_network(Path("/mnt"))


def test_optional_fields_may_be_many_or_none():
    instance.MOUNTS.write_bytes(
        b"1 0 8:2 / /a rw - xfs /dev/b rw\n1 0 8:3 / /b rw shared:1 master:2 - btrfs /dev/c rw\n"
    )
    assert [mount_of(Path(folder)).kind for folder in ("/a", "/b", "/c")] == ["xfs", "btrfs", "unknown"]
