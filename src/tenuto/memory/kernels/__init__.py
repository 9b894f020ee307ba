"""Copies between paged KV and payloads, by kernels that follow addresses.

Takes a `PagedKV` and device arrays of page or slot numbers. Gives `BlockMover` (Triton; all layers in one launch, or
one layer by slot mapping) and `TorchMover`, the same in plain torch, which tests compare it with. Bytes are never
interpreted. Never: waits, allocates, chooses a stream (launches go to torch's current one), or imports Triton before
a `BlockMover` is made.
"""

from tenuto.memory.kernels.mover import BlockMover, Mover
from tenuto.memory.kernels.reference import TorchMover

__all__ = ["BlockMover", "Mover", "TorchMover"]
