"""Which cached block goes first: one module a policy.

Takes slots and block keys in batches, in chain order. Gives victims.
Never: knows bytes, clocks, requests or other pools; keeps a slot that it was told is leased.
"""

from tenuto.pools.policies.lineage import Lineage
from tenuto.pools.policies.lru import LRU
from tenuto.pools.policies.priority import Priority
from tenuto.pools.policies.protocol import Policy, Slots, Where
from tenuto.pools.policies.registry import POLICIES, make_policy
from tenuto.pools.policies.returns import Returns
from tenuto.pools.policies.s3fifo import S3FIFO
from tenuto.pools.policies.slru import SLRU
from tenuto.pools.policies.tinylfu import TinyLFU

__all__ = [
    "LRU",
    "POLICIES",
    "S3FIFO",
    "SLRU",
    "Lineage",
    "Policy",
    "Priority",
    "Returns",
    "Slots",
    "TinyLFU",
    "Where",
    "make_policy",
]
