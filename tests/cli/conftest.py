"""Real disk roots for the commands that look at them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiers.disk_fixtures import Disk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where `open_disk` opens its stores."""
    return tmp_path / "root"


@pytest.fixture
def open_disk(root: Path) -> Iterator[Callable[..., Disk]]:
    """Opens a disk store and writes blocks 0, 1, ... into its slots; all are closed at the end."""
    opened: list[Disk] = []

    def open_one(n_blocks: int = 3, **options: object) -> Disk:
        disk = Disk(root, **options)
        opened.append(disk)
        for slot in range(n_blocks):
            disk.wait_slots(slot + 1)
            assert disk.write((slot, slot)) == []
        return disk

    yield open_one
    for disk in opened:
        disk.close()
