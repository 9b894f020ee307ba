"""Which blocks of disk tiers lie on which volume: told by events, driven through agents.

Takes messages of event streams, and what agents say of volumes. Gives orders: move, drop, compact. Never: reads or
writes a block itself; costs an engine anything when it is away; touches torch or an engine.
"""

from tenuto.advisor.agents import Agent, AgentInfo, Agents, Compacted, Moved, Sockets, VolumeInfo
from tenuto.advisor.core import Advisor, Task, WorkerName
from tenuto.advisor.orders import Compact, Drop, Move, Order
from tenuto.advisor.rules import Rule
from tenuto.advisor.settings import AdvisorSettings, load_advisor_settings

__all__ = [
    "Advisor", "AdvisorSettings", "Agent", "AgentInfo", "Agents", "Compact", "Compacted", "Drop", "Move", "Moved",
    "Order", "Rule", "Sockets", "Task", "VolumeInfo", "WorkerName", "load_advisor_settings",
]  # fmt: skip
