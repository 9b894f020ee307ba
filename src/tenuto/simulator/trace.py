"""Requests from a trace file in Mooncake's format: one JSON object a line, packed by gzip or not."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

from tenuto.errors import ConfigError
from tenuto.simulator.files import open_lines
from tenuto.tokens import BlockHash, BlockKey, HashChain, TokenBlock

NAMESPACE = BlockHash(bytes(16))


class Request(HashChain):
    """A request at `time_s`: a chain whose hashes are given. The tokens of its blocks are not known.

    It asks for its blocks from `start` on (None: for nothing), and leaves those in `kept` (None: all) with the manager.
    One that `is_reset` makes it forget everything before.
    """

    __slots__ = ("is_reset", "kept", "start", "time_s")

    def __init__(
        self, time_s: float, hashes: list[BlockHash], root: bytes = NAMESPACE, block_tokens: int = 1, *,
        start: int | None = 0, kept: range | None = None, is_reset: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(root, block_tokens)
        self.time_s = time_s
        self.hashes = hashes
        self.start = start
        self.kept = range(len(hashes)) if kept is None else kept
        self.is_reset = is_reset

    @property
    def asked(self) -> list[BlockHash]:
        """The blocks that it asks for."""
        return [] if self.start is None else self.hashes[self.start :]

    def __len__(self) -> int:
        return len(self.hashes) * self.block_tokens

    def block(self, index: int) -> TokenBlock:
        """Full block `index`, without tokens."""
        return TokenBlock(BlockKey(*self.key(index)), index, b"")


class _Line(msgspec.Struct):
    timestamp: float
    hash_ids: list[int]


def read_trace(path: Path) -> list[Request]:
    """The requests of a trace, in order of time; equal `hash_ids` are equal blocks.

    Raises `ConfigError` when the file can't be read, or a line is not as it should be.
    """
    with open_lines(path) as file:
        lines = file.read().splitlines()
    names: dict[int, BlockHash] = {}
    requests = list(_requests(path, lines, names))
    if not requests:
        raise ConfigError(f"TRACE: {path} has no requests; give a file in Mooncake's format, one JSON object a line")
    return sorted(requests, key=lambda request: request.time_s)


def _requests(path: Path, lines: list[bytes], names: dict[int, BlockHash]) -> Iterator[Request]:
    decoder = msgspec.json.Decoder(_Line)
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"TRACE: {path}:{number}: {error}; a line is an object with `timestamp` (ms) and `hash_ids` (numbers)"
            ) from None
        for block in line.hash_ids:
            if block not in names:
                names[block] = BlockHash(sha256(str(block).encode()).digest()[:16])
        if len(set(line.hash_ids)) < len(line.hash_ids):
            raise ConfigError(
                f"TRACE: {path}:{number}: a block twice in one request; ids name prefixes, so none repeats"
            )
        yield Request(line.timestamp / 1e3, [names[block] for block in line.hash_ids])
