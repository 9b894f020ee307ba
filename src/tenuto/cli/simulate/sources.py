"""What `tenuto simulate` is given: a trace, or recordings of the engines of one server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from tenuto.cli.simulate.plan import DEFAULT_BLOCK_BYTES, DEFAULT_CAPACITIES
from tenuto.errors import ConfigError

if TYPE_CHECKING:
    from tenuto.simulator import Request

STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class Source:
    """`caches`: the requests of each, in order. The others are what it is simulated with unless the user says so."""

    caches: list[list[Request]]
    says: str = ""
    """A line for the user; empty for a trace."""
    capacities: tuple[int, ...] = DEFAULT_CAPACITIES
    block_bytes: int = DEFAULT_BLOCK_BYTES


@contextmanager
def readable(paths: Sequence[Path]) -> Generator[list[Path]]:
    """These, with a file in the place of "-", standard input: it is read more than once.

    Raises `ConfigError` for "-" twice, and for standard input that can't be read.
    """
    if STDIN not in paths:
        yield list(paths)
        return
    if paths.count(STDIN) > 1:
        raise ConfigError("TRACE: - is given twice, and there is one standard input; give a file")
    with TemporaryFile() as kept:
        try:
            with open(0, "rb", closefd=False) as file:
                shutil.copyfileobj(file, kept)
            kept.flush()
            former = os.dup(0)
        except OSError as error:
            raise ConfigError(f"TRACE: can't read standard input ({error.strerror}); give a file") from None
        os.dup2(kept.fileno(), 0)
        try:
            yield [Path("/dev/stdin") if path == STDIN else path for path in paths]
        finally:
            os.dup2(former, 0)
            os.close(former)


def are_recordings(paths: Sequence[Path]) -> bool:
    """Whether these are recordings. Raises `ConfigError` for several files that are not, which nothing can be made of.

    Engines of one server have caches of their own, traces are of one cache.
    """
    from tenuto.simulator import is_recording

    others = [path for path in paths if not is_recording(path)]
    if others and len(paths) > 1:
        raise ConfigError(f"TRACE: {others[0]} is no recording; give recordings of one server, or one trace alone")
    return not others


def read_source(paths: Sequence[Path]) -> Source:
    """The requests in these files. Raises `ConfigError` for what can't be read."""
    from tenuto.simulator import read_recording, read_requests, read_trace

    if not are_recordings(paths):
        return Source([read_trace(paths[0])])
    recordings = [read_recording(path) for path in paths]
    caches = [read_requests(recording) for recording in recordings]
    n_asks = sum(request.start is not None for cache in caches for request in cache)
    if not n_asks:
        raise ConfigError(f"TRACE: {paths[0]} has no requests; record a server while it answers some")
    own = "" if len(paths) == 1 else f" of {len(paths)} engines, each with a cache of its own of so many blocks"
    return Source(
        caches,
        f"simulates the {n_asks} recorded requests{own}, with caches that are empty at the start; without options "
        "of the simulation: makes the recorded decisions again",
        tuple(sorted({recording.header.host_blocks for recording in recordings})),
        max(recording.header.block_bytes for recording in recordings),
    )
