"""Transfers layer by layer, under the forward pass: each layer is there just before its attention, and kept just after.

`plan` turns a step's transfers into loads and stores by layers, `loads` and `stores` run them beside the engine;
`gathers` copies what a forward fills out of its pages, for the transfer engine to end.
Takes transfers, a device, an arena, a store. Gives a result per transfer.
Never: decides what is loaded this way; shows a block to anybody before all of its layers are there.
"""

from tenuto.transfers.layered.gathers import LayeredGathers
from tenuto.transfers.layered.loads import LayeredLoads
from tenuto.transfers.layered.plan import LoadPlan, StorePlan, plan_loads, plan_stores
from tenuto.transfers.layered.stores import LayeredStores

__all__ = ["LayeredGathers", "LayeredLoads", "LayeredStores", "LoadPlan", "StorePlan", "plan_loads", "plan_stores"]
