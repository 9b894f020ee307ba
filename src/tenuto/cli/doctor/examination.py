"""All checks in order; one that breaks is a finding, and the others go on."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tenuto.cli.doctor import bus, devices, disk, lanes, machine, software
from tenuto.cli.doctor.finding import Finding, Status, warn
from tenuto.tiers.disk.instance import file_system
from tenuto.tiers.disk.quota import used_bytes
from tenuto.tiers.disk.topology import disks_under, read_topology

Check = Callable[[], Finding | list[Finding]]


@dataclass(frozen=True, slots=True)
class Section:
    """Findings under one heading."""

    name: str
    findings: list[Finding]


def guarded(name: str, check: Check) -> list[Finding]:
    """What the check finds; when it breaks, that is what was found."""
    try:
        found = check()
    except Exception as error:  # noqa: BLE001 - border of a check: told in its line
        what = " ".join(f"{type(error).__name__}: {error}".split())
        fix = "let this user look there, or report it; the other lines hold without it"
        return [warn(name, f"could not be checked ({what})", fix)]
    return [found] if isinstance(found, Finding) else found


def examine(path: Path, begin: disk.Begin, moved: disk.Moved, top: Path = Path("/")) -> list[Section]:
    """Everything. `path`: where the disk tier would be; `begin` and `moved` hear of the measuring."""
    affinity = os.sched_getaffinity(0)
    has_rdma = bool(devices.rdma_devices(top))
    folder = disk.existing(path)
    measured: list[disk.Rates] = []

    def rates() -> list[Finding]:
        findings, found = disk.examine_disk(folder, shutil.disk_usage(folder).free, begin, moved)
        measured.extend([found] if found else [])
        return findings

    plan: dict[str, list[tuple[str, Check]]] = {
        "machine": [
            ("cores", lambda: machine.check_cores(top, affinity)),
            ("memory", lambda: machine.check_memory(top)),
            ("NUMA", lambda: machine.check_numa(top, affinity)),
            ("huge pages", lambda: machine.check_huge_pages(top)),
            ("locked memory", lambda: machine.check_locked_memory(
                resource.getrlimit(resource.RLIMIT_MEMLOCK), has_rdma=has_rdma)),
            ("open files", lambda: machine.check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE))),
            ("shared memory", lambda: machine.check_shared_memory(top)),
        ],
        "disk": [
            ("file system", lambda: disk.check_file_system(folder, file_system(folder))),
            ("space", lambda: disk.check_space(folder, shutil.disk_usage(folder).free, used_bytes(path))),
            ("stripes", lambda: disk.check_stripes(path)),
            ("disk rates", rates),
        ],
        "software": [
            ("tenuto", software.check_tenuto),
            ("torch", software.check_torch),
            ("vLLM", software.check_vllm),
        ],
        "devices": [
            ("CUDA", lambda: devices.check_cuda(top)),
            ("GPU-direct", lambda: devices.check_gpu_direct(top)),
            ("runtimes", devices.check_runtimes),
            ("RDMA", lambda: devices.check_rdma(top)),
        ],
        "topology": [("topology", lambda: bus.check_topology(
            read_topology(top / "sys"), bus.shares(disks_under(folder, top / "sys"), _gb_s(measured))))],
        "lanes": [("lanes", lambda: lanes.choose_lanes(measured[0] if measured else None))],
    }  # fmt: skip
    return [Section(name, [f for line, check in checks for f in guarded(line, check)]) for name, checks in plan.items()]


def _gb_s(measured: list[disk.Rates]) -> float:
    """What reading was measured with; 0 where it was not, or went through the page cache."""
    return measured[0].read / 1e9 if measured and measured[0].is_direct else 0.0


def is_fit(sections: list[Section]) -> bool:
    """Whether nothing fails."""
    return not any(found.status is Status.FAIL for section in sections for found in section.findings)
