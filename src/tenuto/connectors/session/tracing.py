"""A worker's trace file."""

from __future__ import annotations

from pathlib import Path

from tenuto.connectors.session.rankfiles import rank_file
from tenuto.settings import expand_user
from tenuto.traces import TraceFile, open_trace

SETTING = "runtime.trace_file"


def open_rank_trace(trace_file: str, rank: int, engine_index: int = 0) -> TraceFile | None:
    """Record from now on; None without a file, and, logged, where it can't be written.

    `engine_index` is that of data parallelism. Raises `ConfigError` for a home folder that nobody has.
    """
    if not trace_file:
        return None
    path = rank_file(expand_user(Path(trace_file), SETTING), rank, engine_index)
    engine = f"engine {engine_index} " if engine_index else ""
    return open_trace(path.absolute(), f"tenuto {engine}rank {rank}")
