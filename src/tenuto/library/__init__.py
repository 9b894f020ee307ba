"""The block manager without an engine: blocks in your own memory, kept in host memory and on disk, and given back.

Takes a `Layout`, a buffer (numpy arrays, torch tensors, or memory of an `Allocator`) and settings. Gives a `KVCache`:
`allocate` blocks and fill them token by token, `register` them, `match` a prompt's longest prefix through all tiers.
Never: imports an engine, or torch unless it is given torch's memory.
"""

from tenuto.library.blocks import Blocks, WritableBlocks
from tenuto.library.cache import KVCache
from tenuto.library.opening import open_cache
from tenuto.memory.allocators import Allocator, Heap, OnDevice, Pinned, Shared
from tenuto.memory.blocklayout import Layout
from tenuto.memory.blockmemory import BlockMemory
from tenuto.pools import SlotState

__all__ = [
    "Allocator",
    "BlockMemory",
    "Blocks",
    "Heap",
    "KVCache",
    "Layout",
    "OnDevice",
    "Pinned",
    "Shared",
    "SlotState",
    "WritableBlocks",
    "open_cache",
]
