"""What NVIDIA's cuFile lacks to start here, or to take a folder's files: asked at opening, not by a transfer."""

from __future__ import annotations

import os
from pathlib import Path

UDEV = Path("/run/udev/data")
"""Where udev keeps a record of each device, of a block device as b254:0, its major and minor number."""
MODULES = Path("/proc/modules")


def missing_for_start() -> str:
    """What of the kernel's is not here: cuFile's start reads it for ever (seen with 1.14 and 1.20)."""
    if os.access(MODULES, os.R_OK):
        return ""
    return f"{MODULES} is missing, and cuFile's start never ends without it; a Linux kernel with modules brings it"


def remedy(fd: int) -> str:
    """What to do where cuFile does not register this file. It asks udev for the file system of the file's disk."""
    device = os.fstat(fd).st_dev
    record = UDEV / f"b{os.major(device)}:{os.minor(device)}"
    if os.major(device) and not os.access(record, os.R_OK):  # 0: memory, a network, or layers of a container
        return (
            f"udev's record of the disk, {record}, is missing: run udev or, in a container, mount the host's "
            f'/run/udev; or use "file"'
        )
    return 'its cufile.log says why; give a folder on a local disk with ext4 or XFS, or use "file"'
