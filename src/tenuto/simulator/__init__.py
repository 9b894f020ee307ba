"""The real manager and pools on a recorded trace and a virtual clock.

Takes requests (times and block hashes), pools, and bandwidths. Gives hit rates, and the optimum beside them.
Never: touches torch, threads or the real clock; does I/O beyond reading the trace.
"""

from tenuto.simulator.lanes import Bandwidths
from tenuto.simulator.optimum import best_hits, optimal_hits
from tenuto.simulator.recorded import RecordedManager
from tenuto.simulator.recordings import Header, Recording, is_recording, read_recording, read_requests
from tenuto.simulator.replay import Replay, replay
from tenuto.simulator.simulation import Outcome, Tiers, simulate
from tenuto.simulator.trace import Request, read_trace

__all__ = [
    "Bandwidths",
    "Header",
    "Outcome",
    "RecordedManager",
    "Recording",
    "Replay",
    "Request",
    "Tiers",
    "best_hits",
    "is_recording",
    "optimal_hits",
    "read_recording",
    "read_requests",
    "read_trace",
    "replay",
    "simulate",
]
