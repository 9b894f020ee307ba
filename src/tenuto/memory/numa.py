"""Which NUMA node lies nearest to a device. `top` is the root folder, so that a test can have a kernel of its own.

Source: the kernel's sysfs ABI (sysfs-bus-pci, sysfs-devices-node).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node and its CPUs."""

    number: int
    cpus: frozenset[int]


def nearest_node(pci_address: str, top: Path = Path("/")) -> Node | None:
    """The node of the device ``0000:1b:00.0``; None where the kernel names none or has only one."""
    system = top / "sys/devices/system/node"
    if len(list(system.glob("node[0-9]*"))) < 2:
        return None
    try:
        number = int((top / "sys/bus/pci/devices" / pci_address / "numa_node").read_text())
        cpus = parse_cpulist((system / f"node{number}/cpulist").read_text())
    except (OSError, ValueError):  # no such file: -1 is the kernel's word for not known
        return None
    return Node(number, cpus) if cpus else None


def parse_cpulist(text: str) -> frozenset[int]:
    """From ``0-2,5`` to {0, 1, 2, 5}. Raises `ValueError` for anything else."""
    spans = [part.partition("-") for part in text.strip().split(",") if part]
    return frozenset(number for first, _, last in spans for number in range(int(first), int(last or first) + 1))
