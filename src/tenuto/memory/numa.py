"""Which NUMA node lies nearest to a device. `top` is the root folder, so that a test can have a kernel of its own.

Source: the kernel's sysfs ABI (sysfs-bus-pci, sysfs-devices-node).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tenuto.memory.kernelfiles import kernel_number, kernel_text

_MOST_CPUS = 1 << 16  # more than any kernel counts


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
    number = kernel_number(kernel_text(top / "sys/bus/pci/devices" / pci_address / "numa_node"))
    if number is None:  # no such file, or -1: the kernel's word for not known
        return None
    try:
        cpus = parse_cpulist(kernel_text(system / f"node{number}/cpulist"))
    except ValueError:
        return None
    return Node(number, cpus) if cpus else None


def parse_cpulist(text: str) -> frozenset[int]:
    """From ``0-2,5`` to {0, 1, 2, 5}. Raises `ValueError` for anything else."""
    cpus: set[int] = set()
    for part in [part for part in text.strip().split(",") if part]:
        first, _, last = part.partition("-")
        start, stop = int(first), int(last or first) + 1
        if stop > _MOST_CPUS:
            raise ValueError(f"{part} is no range of CPUs")
        cpus.update(range(start, stop))
    return frozenset(cpus)
