"""How far disks are from GPUs on the PCIe bus, which of them a rank should use, and what it can expect.

Read from `/sys` alone. Sources: the kernel's sysfs-bus-pci and sysfs-class-block descriptions.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from tenuto.memory.kernelfiles import kernel_number, kernel_text

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
_CONTROLLER = re.compile(r"nvme\d+")
_BITS_8B10B_GT_S = 5.0  # links up to here lose a fifth to their code, faster ones 2 bits in 130


class Distance(IntEnum):
    """What lies between a GPU and a disk."""

    SWITCH = 0  # one PCIe switch
    NODE = 1  # one NUMA node, through its root complex
    FAR = 2  # the link between two nodes


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A GPU or a disk. `bridges` lie above it on the bus, the topmost first; `node` is -1 where none is known.

    `link_gb_s`: the rate of its widest and fastest link (10^9 bytes per second), 0 where it is unknown.
    """

    name: str
    address: str
    bridges: tuple[str, ...] = ()
    node: int = -1
    link_gb_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Topology:
    """All GPUs and disks of a machine, in the order of their addresses and names."""

    gpus: tuple[PciDevice, ...] = ()
    disks: tuple[PciDevice, ...] = ()

    def pool(self, gpu: PciDevice) -> tuple[PciDevice, ...]:
        """The disks that are nearest to a GPU."""
        nearest = min((distance(gpu, disk) for disk in self.disks), default=Distance.FAR)
        return tuple(disk for disk in self.disks if distance(gpu, disk) is nearest)

    def predicted_gb_s(self, gpu: PciDevice, rates: Mapping[str, float] | None = None) -> float:
        """min(disks / sharing GPUs, link) when every GPU reads from its pool at once; 0 where nothing is known.

        `rates`: GB/s of disks that were measured, by name; of others their link counts.
        """
        n_sharing = Counter(disk.name for other in self.gpus for disk in self.pool(other))
        shares = [((rates or {}).get(disk.name) or disk.link_gb_s) / n_sharing[disk.name] for disk in self.pool(gpu)]
        return min(sum(shares), gpu.link_gb_s or sum(shares))


def distance(one: PciDevice, other: PciDevice) -> Distance:
    """Between two devices."""
    if set(one.bridges) & set(other.bridges):
        return Distance.SWITCH
    return Distance.NODE if one.node == other.node else Distance.FAR


def choose_pools(topology: Topology, gpus: Sequence[str], pools: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The pool of each GPU: the nearest, and of equally near ones that with the fewest GPUs so far.

    `gpus`: PCI addresses, in the order of ranks. `pools`: the names of the disks that each pool lies on; a
    pool on several is as far as the farthest, one on disks that are not on the bus is far.
    """
    known = {gpu.address: gpu for gpu in topology.gpus}
    disks = {disk.name: disk for disk in topology.disks}
    n_users: Counter[str] = Counter()
    chosen: dict[str, str] = {}
    for address in gpus:
        gpu = known.get(address)

        def far(pool: str, gpu: PciDevice | None = gpu) -> tuple[int, int]:
            found = [disks.get(name) for name in pools[pool]]
            spans = [Distance.FAR if disk is None or gpu is None else distance(gpu, disk) for disk in found]
            return max(spans, default=Distance.FAR), n_users[pool]

        chosen[address] = min(pools, key=far)
        n_users[chosen[address]] += 1
    return chosen


def read_topology(sys: Path = Path("/sys")) -> Topology:
    """What the kernel says; nothing where there is no such bus."""
    gpus: list[PciDevice] = []
    for entry in sorted(sys.glob("bus/pci/devices/*")):
        if _text(entry / "vendor") == _NVIDIA and _text(entry / "class").startswith(_DISPLAY):
            found = _device(entry.resolve(), entry.name)
            gpus += [found] if found else []
    disks = [disk for entry in sorted(sys.glob("block/*")) if (disk := _disk(entry))]
    return Topology(tuple(gpus), tuple(disks))


def disks_under(path: Path, sys: Path = Path("/sys")) -> list[str]:
    """Names of the disks that a file or folder lies on: several below a RAID, none for what is not on a disk."""
    try:
        number = path.stat().st_dev
    except OSError:
        return []
    entry = sys / "dev/block" / f"{os.major(number)}:{os.minor(number)}"
    return sorted(_whole_disks(entry.resolve())) if entry.exists() else []


def _whole_disks(entry: Path) -> set[str]:
    """Down through partitions, RAIDs and mappings."""
    below = sorted(entry.glob("slaves/*"))
    if below:
        return {name for slave in below for name in _whole_disks(slave.resolve())}
    return {entry.parent.name if (entry / "partition").exists() else entry.name}


def _disk(entry: Path) -> PciDevice | None:
    """A disk of the bus; None for loops, mappings, drives whose medium can be taken out, and one path of several."""
    path = entry.resolve()
    if "1" in (_text(path / "removable"), _text(path / "hidden")):
        return None
    if "nvme-subsystem" in path.parts:  # one namespace, reached through any of its controllers
        controllers = [other for other in sorted(path.parent.glob("nvme*")) if _CONTROLLER.fullmatch(other.name)]
        return _device(controllers[0].resolve(), entry.name) if controllers else None
    return _device(path, entry.name)


def _device(path: Path, name: str) -> PciDevice | None:
    """The last PCI device on a path of the kernel's, with what lies above it."""
    parts = path.parts
    places = [index for index, part in enumerate(parts) if _ADDRESS.fullmatch(part)]
    if not places:
        return None
    folder = Path(*parts[: places[-1] + 1])
    node = _text(folder / "numa_node")
    return PciDevice(
        name,
        parts[places[-1]],
        tuple(parts[index] for index in places[:-1]),
        -1 if (number := kernel_number(node)) is None else number,
        _link_gb_s(_text(folder / "max_link_speed"), _text(folder / "max_link_width")),
    )


def _link_gb_s(speed: str, width: str) -> float:
    """From "32.0 GT/s PCIe" and "16": 63.0."""
    match = re.match(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) GT/s", speed)
    lanes = kernel_number(width)
    if match is None or lanes is None:
        return 0.0
    transfers = float(match[1])
    return transfers * lanes / 8 * (0.8 if transfers <= _BITS_8B10B_GT_S else 128 / 130)


def _text(path: Path) -> str:
    return kernel_text(path).strip()
