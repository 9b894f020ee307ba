"""The only orchestrator: what to load, what to keep, what follows from a result.

Takes block hashes, device places and transfer results. Gives transfers (data, not actions), leases and facts.
Never: touches torch, files, clocks or threads; so one core serves engines, tests and a simulator.
"""

from tenuto.manager.admission import ADMISSIONS, Admission, make_admission
from tenuto.manager.blockset import BlockSet
from tenuto.manager.gate import Choice, ComputeCost, LoadCost, Offer, choose, choose_form, in_time, n_leaving, n_pairs
from tenuto.manager.health import DiskHealth
from tenuto.manager.inventory import inventory
from tenuto.manager.manager import BlockManager
from tenuto.manager.rates import LoadRates, StepRates
from tenuto.manager.results import Filled, Hit, Limits, Lookup, Miss, Onboard, Pending, Span

__all__ = [
    "ADMISSIONS",
    "Admission",
    "BlockManager",
    "BlockSet",
    "Choice",
    "ComputeCost",
    "DiskHealth",
    "Filled",
    "Hit",
    "Limits",
    "LoadCost",
    "LoadRates",
    "Lookup",
    "Miss",
    "Offer",
    "Onboard",
    "Pending",
    "Span",
    "StepRates",
    "choose",
    "choose_form",
    "in_time",
    "inventory",
    "make_admission",
    "n_leaving",
    "n_pairs",
]
