"""The storage agent: one store over several volumes, whose blocks can be moved while they are read.

Takes a rank's disk store as its home volume, and further volumes by their URLs: folders of faster or larger disks, and
object stores. Gives the tier its slots, whichever place of whichever volume a slot's block lies in; to an advisor, over
a socket in the rank's folder, what there is and the orders to move, drop and compact.
Never: decides what lies where, beyond "new blocks go home while there is room".
"""

from tenuto.tiers.agent.agent import StorageAgent
from tenuto.tiers.agent.messages import AgentInfo, Compacted, Moved, VolumeInfo

__all__ = ["AgentInfo", "Compacted", "Moved", "StorageAgent", "VolumeInfo"]
