"""The real manager and pools on a recorded trace and a virtual clock.

Takes requests (times and block hashes), pools, and bandwidths. Gives hit rates, and the optimum beside them.
Never: touches torch, threads or the real clock; does I/O beyond reading the trace.
"""

from tenuto.simulator.lanes import Bandwidths
from tenuto.simulator.optimum import optimal_hits
from tenuto.simulator.recorded import RecordedManager
from tenuto.simulator.replay import Replay, is_recording, replay
from tenuto.simulator.simulation import Outcome, Tiers, simulate
from tenuto.simulator.trace import Request, read_trace

__all__ = [
    "Bandwidths",
    "Outcome",
    "RecordedManager",
    "Replay",
    "Request",
    "Tiers",
    "is_recording",
    "optimal_hits",
    "read_trace",
    "replay",
    "simulate",
]
