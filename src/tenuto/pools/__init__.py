"""Slot states, leases, policies and prefix match.

Takes block keys and counts. Gives slots, under a lease that keeps them from being evicted.
One lock per pool; every method decides under it and returns what happened.
Never: knows what a slot's bytes are or where they lie; touches torch, files or clocks.
"""

from tenuto.pools.lease import Lease, WritableLease
from tenuto.pools.policies import LRU, POLICIES, Policy, Slots, make_policy
from tenuto.pools.pool import Allocated, Full, Pool, PoolStatistics, Registered
from tenuto.pools.states import TRANSITIONS, SlotState, Trigger

__all__ = [
    "LRU",
    "POLICIES",
    "TRANSITIONS",
    "Allocated",
    "Full",
    "Lease",
    "Policy",
    "Pool",
    "PoolStatistics",
    "Registered",
    "SlotState",
    "Slots",
    "Trigger",
    "WritableLease",
    "make_policy",
]
