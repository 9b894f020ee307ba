"""Storage runtimes: many pieces of files to or from registered memory, and the fate of each.

`contract` says what a runtime does, `books` keeps what is open and in flight, `folders` has a way to each disk, threads
(`lanes`) or the kernel's queue (`queuelane`), with files striped over them; disks are `direct`, `memory` and `cufile`.
`nixl` hands batches to NIXL's agent; `probe` says what cuFile lacks to start, or to take a folder's files. `window`
moves any number of items through any of them, `url` opens one.
Takes files, offsets, memory. Gives a state per item. Never: knows what the bytes are.
"""

from tenuto.tiers.disk.runtime.books import Submission
from tenuto.tiers.disk.runtime.contract import (
    Accepted,
    Caps,
    Done,
    Failed,
    File,
    IoRequest,
    Memory,
    Op,
    Reason,
    Region,
    Rejected,
    Short,
    State,
    StorageRuntime,
)
from tenuto.tiers.disk.runtime.url import RuntimeSettings, open_runtime, run_devices, what_is_missing
from tenuto.tiers.disk.runtime.window import move

__all__ = [
    "Accepted",
    "Caps",
    "Done",
    "Failed",
    "File",
    "IoRequest",
    "Memory",
    "Op",
    "Reason",
    "Region",
    "Rejected",
    "RuntimeSettings",
    "Short",
    "State",
    "StorageRuntime",
    "Submission",
    "move",
    "open_runtime",
    "run_devices",
    "what_is_missing",
]
