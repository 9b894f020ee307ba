"""How bytes cross between the engine's memory and host memory.

Takes page runs and host slots. Gives copies, queued in the order of the engine's computing: on the CPU at once, on
CUDA through a staging ring (a kernel on one side of it, a copy engine on the other), or straight where both sides are
contiguous.
Never: decides what to move; waits on the engine's thread.
"""

from tenuto.transfers.lanes.device import LANDED, Device, Landing

__all__ = ["LANDED", "Device", "Landing"]
