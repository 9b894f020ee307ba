"""Recordings, read: line by line, or as the requests of a trace."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tenuto.errors import ConfigError
from tenuto.simulator.files import open_lines
from tenuto.simulator.recorded import VERSION
from tenuto.simulator.trace import Request
from tenuto.tokens import BlockHash
from tenuto.tokens.chain import HASH_BYTES

Op = tuple[str, list[Any]]

_DECIDED = frozenset("trmdesui")  # what came of requests, and of the tiers that they met


class Header(msgspec.Struct, frozen=True):
    """What was recorded: one engine's pools, in blocks, and what they go by."""

    host_blocks: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
    host_policy: str
    has_disk: bool
    disk_policy: str
    admission: str
    max_writes: int
    block_bytes: Annotated[int, msgspec.Meta(ge=1)]


class _Version(msgspec.Struct):
    tenuto_recording: int


class _Line(msgspec.Struct):
    t: float
    ops: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Recording:
    """A file of what one manager was told; see `recorded` for its lines."""

    path: Path
    header: Header

    def lines(self) -> Iterator[tuple[int, float, list[Op]]]:
        """Number, seconds and what happened, of each whole line. Raises `ConfigError` for one that can't be read."""
        decoder = msgspec.json.Decoder(_Line)
        with open_lines(self.path) as file:
            for number, text in enumerate(file, start=1):
                if number == 1 or not text.endswith(b"\n"):  # cut off when its engine was killed
                    continue
                try:
                    line = decoder.decode(text)
                    yield number, line.t, [(op[0], op[1:]) for op in line.ops]
                except (msgspec.MsgspecError, LookupError) as error:
                    raise self.broken(number, error) from None

    def broken(self, number: int, error: Exception) -> ConfigError:
        """A line that says what can't be."""
        return ConfigError(f"TRACE: {self.path}:{number}: broken line ({error}); record it again")


def is_recording(path: Path) -> bool:
    """Whether the file begins as a recording of ours does."""
    try:
        with open_lines(path) as file:
            return file.read(20).startswith(b'{"tenuto_recording"')
    except ConfigError:
        return False


def read_recording(path: Path) -> Recording:
    """The recording in a file. Raises `ConfigError` when its first line can't be read, or is another version's."""
    with open_lines(path) as file:
        first = file.readline()
    try:
        version = msgspec.json.decode(first, type=_Version).tenuto_recording
        if version == VERSION:
            return Recording(path, msgspec.json.decode(first, type=Header))
    except msgspec.MsgspecError as error:
        raise ConfigError(f"TRACE: {path}:1: {error}") from None
    raise ConfigError(f"TRACE: {path} is a recording of another version; record it again with this one")


def read_requests(recording: Recording) -> list[Request]:
    """What was asked and what was kept, in their order, for any policy and capacity. Starts with empty tiers.

    A lookup that was made again before anything came of it counts once, when it was made last, as its request was
    served by that answer. Blocks that the engine had by itself were not asked for. What a request left with the manager
    it leaves whatever is found: what is not loaded is computed. Raises `ConfigError` for a line that can't be read.
    """
    reader = _Reader()
    for number, seconds, ops in recording.lines():
        try:
            for name, values in ops:
                reader.take(seconds, name, values)
        except (LookupError, ValueError, TypeError) as error:
            raise recording.broken(number, error) from None
    return [request for request in reader.requests if request is not None]


class _Reader:
    """Makes requests of what it is told."""

    def __init__(self) -> None:
        self.requests: list[Request | None] = []
        self._chains: dict[int, Request] = {}
        self._asks: dict[int, int] = {}  # by chain: its request, while a later lookup would take its place
        self._hits: list[int] = []  # their chains

    def take(self, seconds: float, name: str, values: Sequence[Any]) -> None:
        """One thing that happened."""
        match name, values:
            case "c", [number, root]:
                self._chains[number] = Request(0.0, [], b64decode(root))
            case "x", [number, hashes]:
                self._chains[number].hashes += unpacked(hashes)
            case "l", [number, start, found]:
                self._ask(seconds, number, start)
                if found and found != "pending":
                    self._hits.append(number)
            case "o", [int(hit)]:
                self._asks.pop(self._hits[hit], None)
            case "f", [filled]:
                for number, start, n in filled:
                    self._asks.pop(number, None)
                    chain = self._chains[number]
                    kept = range(start, start + n)
                    self.requests.append(Request(seconds, chain.hashes, chain.root, start=None, kept=kept))
            case "z", []:
                self._asks.clear()
                self.requests.append(Request(seconds, [], start=None, is_reset=True))
            case _:
                if name not in _DECIDED:
                    raise ValueError(f"no operation is named {name!r}")

    def _ask(self, seconds: float, number: int, start: int) -> None:
        before = self._asks.get(number)
        if before is not None:
            self.requests[before] = None
        chain = self._chains[number]
        self._asks[number] = len(self.requests)
        self.requests.append(Request(seconds, list(chain.hashes), chain.root, start=start, kept=range(0)))


def unpacked(text: str) -> list[BlockHash]:
    """Hashes out of text."""
    data = b64decode(text)
    return [BlockHash(data[at : at + HASH_BYTES]) for at in range(0, len(data), HASH_BYTES)]
