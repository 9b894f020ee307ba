"""GPUs and disks on the PCIe bus: the matrix of their distances, and what each GPU can expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenuto.cli.doctor.finding import Finding, ok, warn
from tenuto.tiers.disk.topology import Distance, Topology, distance

LEGEND = "distance 0: one PCIe switch, 1: one NUMA node, 2: across nodes"


def shares(disks: Sequence[str], gb_s: float) -> dict[str, float]:
    """What each of the disks that a folder lies on has of the rate that was measured there."""
    return {name: gb_s / len(disks) for name in disks}


def check_topology(topology: Topology, rates: Mapping[str, float]) -> list[Finding]:
    """One line per GPU. `rates`: GB/s of disks that were measured."""
    if not topology.gpus:
        return [ok("topology", "no GPU on the bus")]
    if not topology.disks:
        return [ok("topology", "no disk on the bus")]
    findings = [ok("topology", f"{len(topology.gpus)} GPUs, {len(topology.disks)} disks; {LEGEND}")]
    for gpu in topology.gpus:
        spans = ", ".join(f"{disk.name} {distance(gpu, disk).value}" for disk in topology.disks)
        pool = topology.pool(gpu)
        gb_s = topology.predicted_gb_s(gpu, rates)
        expected = f"at most {gb_s:.1f} GB/s" if gb_s else "its rate is unknown"
        text = f"{spans}; nearest: {', '.join(disk.name for disk in pool)}, {expected}"
        name = f"GPU {gpu.address}"
        if distance(gpu, pool[0]) is Distance.FAR:
            findings.append(warn(name, text, "use a disk on this GPU's node: its reads cross the link between nodes"))
        else:
            findings.append(ok(name, text))
    return findings
