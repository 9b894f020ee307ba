"""What takes its time where: spans of loads, stores, waits and kernels.

Takes the beginning and the end of a piece of work, with its layer and its bytes, from any folder and any thread. Gives
NVTX ranges, and a file for Perfetto or Chrome that needs no GPU.
Never: decides anything by what it measured; costs more than a fraction of a microsecond while nobody asks.
"""

from tenuto.traces.files import TraceFile, open_trace, read_trace, to_json
from tenuto.traces.overlap import hidden_share
from tenuto.traces.spans import COLOURS, Recorder, Span, add, is_recording, span

__all__ = [
    "COLOURS",
    "Recorder",
    "Span",
    "TraceFile",
    "add",
    "hidden_share",
    "is_recording",
    "open_trace",
    "read_trace",
    "span",
    "to_json",
]
