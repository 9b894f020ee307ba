"""Where the disk tier lies, and what moves its bytes, by the settings."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from tenuto.config import Disk, in_units, parse_size
from tenuto.errors import ConfigError
from tenuto.memory.driver import CudaDriver, DriverError
from tenuto.settings import expand_user
from tenuto.tiers.disk.quota import Quota
from tenuto.tiers.disk.runtime import RuntimeSettings, StorageRuntime, open_runtime, what_is_missing
from tenuto.tiers.disk.store import OpenRuntime, open_files
from tenuto.tiers.disk.topology import Topology, disks_under, distance, read_topology

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Volume:
    """A root folder, the others that it is striped over, and the runtime of the files in them."""

    root: Path
    others: tuple[Path, ...]
    runtime: OpenRuntime


def volume_of(disk: Disk) -> Volume:
    """What the settings say.

    Raises `ConfigError`, one line: a folder in nobody's home or there twice, or what a runtime lacks here.
    """
    root = expand_user(Path(disk.path), "tiers.disk.path").absolute()
    others = tuple(expand_user(Path(folder), "tiers.disk.stripes").absolute() for folder in disk.stripes)
    if len({folder.resolve() for folder in (root, *others)}) <= len(others):
        raise ConfigError("tiers.disk.stripes: a folder is there twice, or is tiers.disk.path; give each once")
    if disk.runtime in ("file", "striped"):
        return Volume(root, others, open_files)
    if absent := what_is_missing()[disk.runtime]:
        raise ConfigError(f'tiers.disk.runtime: "{disk.runtime}" does not work here: {absent}; or use "file"')
    return Volume(root, others, _Foreign(disk.runtime))


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A runtime over a library of others."""

    scheme: str

    def __call__(self, folders: tuple[Path, ...], settings: RuntimeSettings) -> StorageRuntime:
        try:
            return open_runtime(f"{self.scheme}://{folders[0]}", settings)
        except ConfigError as error:
            raise ConfigError(f"tiers.disk.runtime: {error}") from error


def quota_of(disk: Disk, volume: Volume, extent_bytes: int) -> Quota:
    """The node's bound. Raises `ConfigError` when not one block fits, `StoreError` when a disk can't be looked at."""
    quota = Quota.auto(volume.root, volume.others)
    if disk.capacity != "auto":
        quota = Quota(volume.root, parse_size(disk.capacity, "tiers.disk.capacity"), volume.others)
    least = 2 * extent_bytes + (1 << 20)  # a block, what is spared, and the manifest
    if quota.capacity_bytes < least:
        raise ConfigError(
            f"tiers.disk.capacity: {disk.capacity} has no room for one block of {in_units(extent_bytes)}; "
            f"give at least {in_units(least)}, free some disk space, or use no tiers.disk.path"
        )
    return quota


def tell_distance(volume: Volume, rank: int, driver: CudaDriver | None) -> None:
    """Log how far the rank's disks are from its GPU, and what reading can reach; nothing without a GPU."""
    if driver is None:
        return
    try:
        gpu = driver.pci_address()
    except DriverError:  # without a context; what needs one says so
        return
    disks = sorted({name for folder in (volume.root, *volume.others) for name in disks_under(folder)})
    if line := describe(read_topology(), gpu, disks):
        logger.info("tenuto: disk tier of rank %d: %s", rank, line)


def describe(topology: Topology, gpu_address: str, disks: list[str]) -> str:
    """One line on these disks and a GPU; empty where the bus does not know them."""
    gpu = next((gpu for gpu in topology.gpus if gpu.address == gpu_address), None)
    known = [disk for disk in topology.disks if disk.name in disks]
    if gpu is None or not known:
        return ""
    spans = ", ".join(f"{disk.name} at distance {distance(gpu, disk).value}" for disk in known)
    links = sum(disk.link_gb_s for disk in known) / len(topology.gpus)
    gb_s = min(links, gpu.link_gb_s or links)
    rate = f"; at most {gb_s:.1f} GB/s" if gb_s else ""
    shared = f" when all {len(topology.gpus)} GPUs read at once" if gb_s and len(topology.gpus) > 1 else ""
    return f"{spans} from GPU {gpu.address}{rate}{shared}"
