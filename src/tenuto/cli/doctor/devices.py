"""CUDA, GPU-direct storage and RDMA: what there is, by the drivers alone. `top` is the root folder."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from ctypes.util import find_library
from pathlib import Path

from tenuto.cli.doctor.finding import Finding, ok, warn
from tenuto.cli.doctor.software import Versions, installed
from tenuto.tiers.disk.runtime import what_is_missing

SMI = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
SMI_TIMEOUT_S = 20.0


def list_gpus() -> list[str]:
    """One line per GPU, as NVIDIA's tool tells them; none without it. Raises `OSError` when it does not answer."""
    program = shutil.which(SMI[0])
    if program is None:
        return []
    try:
        run = subprocess.run([program, *SMI[1:]], capture_output=True, text=True, check=False, timeout=SMI_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{SMI[0]} did not answer in {SMI_TIMEOUT_S:.0f} s") from None
    return run.stdout.splitlines() if run.returncode == 0 else []


def check_cuda(top: Path, *, gpus: Callable[[], list[str]] = list_gpus, versions: Versions = installed) -> Finding:
    """Driver, devices, and whether torch and our kernels can use them."""
    driver = top / "proc/driver/nvidia/version"
    found = gpus()
    if not found:
        if driver.exists():
            fix = "look at `nvidia-smi`; in a container, pass the devices through (--gpus all)"
            return warn("CUDA", "a driver without a device", fix)
        return ok("CUDA", "no device: CPU only")
    names = ", ".join(_gpu(line) for line in found)
    if (versions("torch") or "").endswith("+cpu"):
        return warn("CUDA", f"{names}; torch is built for the CPU only", "install torch and vLLM for CUDA to use it")
    if versions("triton") is None:
        return warn("CUDA", f"{names}; no Triton, whose kernels move blocks", "install vLLM for CUDA, which brings it")
    return ok("CUDA", names)


def check_gpu_direct(top: Path, library: Callable[[str], str | None] = find_library) -> Finding:
    """NVIDIA's library and kernel module that read from disk into GPU memory."""
    parts = {
        "libcufile": library("cufile") is not None or bool([*(top / "usr/local").glob("cuda*/lib64/libcufile.so*")]),
        "nvidia-fs": (top / "proc/driver/nvidia-fs/version").exists(),
    }
    there = [name for name, is_there in parts.items() if is_there]
    text = f"{' and '.join(there) or 'not'} present"
    return ok("GPU-direct", f"{text}; the disk tier does not use it yet: blocks cross host memory")


def check_runtimes(missing: Callable[[], dict[str, str]] = what_is_missing) -> list[Finding]:
    """Storage runtimes over foreign libraries: what they lack here. Nobody needs them; plain files always work."""
    return [
        ok(f"{name}://", f"for tiers.disk.runtime alone: {absent}" if absent else "has what it needs")
        for name, absent in missing().items()
    ]


def rdma_devices(top: Path) -> list[str]:
    """The names of RDMA devices."""
    return sorted(path.name for path in (top / "sys/class/infiniband").glob("*"))


def check_rdma(top: Path) -> Finding:
    """RDMA devices; nothing uses them yet."""
    found = rdma_devices(top)
    return ok("RDMA", f"{', '.join(found)}; not used by this version" if found else "no device")


def _gpu(line: str) -> str:
    """From "NVIDIA H200, 143771 MiB, 570.1" to "NVIDIA H200 (143771 MiB, driver 570.1)"."""
    match = re.fullmatch(r"\s*(.+?),\s*([^,]+?),\s*([^,]+?)\s*", line)
    return f"{match[1]} ({match[2]}, driver {match[3]})" if match else line.strip()
