"""A small geometry, and stores on real folders."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiers.disk_fixtures import Disk


@pytest.fixture
def open_disk(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    """Opens disk stores under one root; all are closed at the end."""
    opened: list[Disk] = []

    def open_one(**options: object) -> Disk:
        disk = Disk(tmp_path / "root", **options)
        opened.append(disk)
        return disk

    yield open_one
    for disk in opened:
        disk.close()
