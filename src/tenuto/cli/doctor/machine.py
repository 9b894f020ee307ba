"""Cores, memory and limits. `top` is the root folder, so that a test can have a kernel of its own."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from tenuto.cli.doctor.finding import Finding, ok, warn
from tenuto.cli.memory import machine_memory
from tenuto.cli.wording import size_text
from tenuto.config import Host, parse_size
from tenuto.memory.kernelfiles import kernel_number, kernel_text
from tenuto.memory.numa import parse_cpulist

Limits = tuple[int, int]
"""(soft, hard), as `resource.getrlimit` gives them."""

OPEN_FILES = 1024
"""Descriptors one engine may need: 512 pool files, its own and of others, and its sockets."""
SHM_BYTES = 1 << 30
RDMA_LOCKED_BYTES = 1 << 30


def check_cores(top: Path, affinity: AbstractSet[int]) -> Finding:
    """Cores this process may use, and a container's quota."""
    cores = len(affinity)
    text = "1 core" if cores == 1 else f"{cores} cores"
    quota = [kernel_number(word) for word in kernel_text(top / "sys/fs/cgroup/cpu.max").split()]
    if len(quota) == 2 and quota[0] and quota[1]:
        allowed = quota[0] / quota[1]
        text += f", {allowed:.1f} allowed by the container"
        cores = min(cores, int(allowed))
    if cores < 2:
        return warn("cores", text, "give two or more: copies and disk reads take turns with the engine's computing")
    return ok("cores", text)


def check_memory(top: Path) -> Finding:
    """Memory there is and that is free, by a container's limit where it has one."""
    default = Host().capacity
    memory = machine_memory(top)
    if memory is None:
        fix = f"see that tiers.host.capacity, {default} by default, fits into what is free"
        return warn("memory", "the kernel does not say how much there is", fix)
    total, free = memory
    text = f"{size_text(total)}, {size_text(free)} of it free"
    if free < parse_size(default, "tiers.host.capacity"):
        return warn("memory", text, f"give tiers.host.capacity less than its default of {default}, or free some memory")
    return ok("memory", text)


def check_numa(top: Path, affinity: AbstractSet[int]) -> Finding:
    """Whether this process's cores lie in one NUMA node."""
    nodes: dict[str, frozenset[int]] = {}
    for path in sorted((top / "sys/devices/system/node").glob("node*/cpulist")):
        with suppress(ValueError):
            nodes[path.parent.name.removeprefix("node")] = parse_cpulist(kernel_text(path))
    mine = [name for name, cores in nodes.items() if cores & affinity]
    if len(mine) > 1:
        fix = f"run one engine per node: numactl --cpunodebind={mine[0]} --membind={mine[0]} ..."
        return warn("NUMA", f"this process may run on {len(mine)} nodes, memory of another node is slower", fix)
    return ok("NUMA", f"1 of {len(nodes)} nodes" if len(nodes) > 1 else "1 node")


def check_huge_pages(top: Path) -> Finding:
    """Transparent huge pages, which the host arena asks for."""
    match = re.search(r"\[(\w+)\]", kernel_text(top / "sys/kernel/mm/transparent_hugepage/enabled"))
    if match and match[1] in ("always", "madvise"):
        return ok("huge pages", match[1])
    fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root): direct I/O gains a tenth"
    return warn("huge pages", "never" if match else "this kernel has none", fix)


def check_locked_memory(limits: Limits, *, has_rdma: bool) -> Finding:
    """RLIMIT_MEMLOCK: only network cards need more than the default."""
    soft = limits[0]
    text = "unlimited" if soft == resource.RLIM_INFINITY else f"{size_text(soft)} at most"
    if has_rdma and soft != resource.RLIM_INFINITY and soft < RDMA_LOCKED_BYTES:
        return warn("locked memory", f"{text}, too little for RDMA", "run `ulimit -l unlimited` before the engine")
    return ok("locked memory", text if has_rdma or soft == resource.RLIM_INFINITY else f"{text}; only RDMA needs more")


def check_open_files(limits: Limits) -> Finding:
    """RLIMIT_NOFILE: pool files in use are open, up to a bound."""
    soft, hard = limits
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        is_hard = hard != resource.RLIM_INFINITY and hard < OPEN_FILES
        fix = f"run `ulimit -n {OPEN_FILES}` before the engine" + (" (as root: the hard limit is lower)" * is_hard)
        return warn("open files", f"{soft:,} at most, a large disk tier needs {OPEN_FILES:,}", fix)
    return ok("open files", "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,} at most")


def check_shared_memory(top: Path, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs) -> Finding:
    """/dev/shm, through which an engine's processes talk."""
    try:
        disk = statvfs(top / "dev/shm")
    except OSError:
        return warn("shared memory", "no /dev/shm", "mount one: engines of several processes need it")
    size = disk.f_blocks * disk.f_frsize
    if size < SHM_BYTES:
        fix = "give the container more: --shm-size=4g, or --ipc=host"
        return warn("shared memory", f"/dev/shm has {size_text(size)}, little for engines of several processes", fix)
    return ok("shared memory", f"/dev/shm has {size_text(size)}")
