"""The header of an extent, and its sums. The byte layout is drawn in docs/format.md."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import xxhash

from tenuto.errors import Cause, StoreError
from tenuto.memory.layout import EXTRA_BYTES, FIXED_BYTES, ExtentLayout
from tenuto.tokens import FORMAT_VERSION, BlockHash, BlockKey, TokenBlock

MAGIC = b"TENUTOKV"
EXTRA_LEFT_OUT = 65535

_FIXED = struct.Struct("<8sHHIQ16s16s16s16sIHHIHHHHIII8x")
assert _FIXED.size == FIXED_BYTES
_SUM_OFFSET = 16
_HASH_OFFSET = 40
_OWN = struct.Struct("<16s16s16sIHH")
"""What differs between blocks of a codec: from the hash on."""
_SUM = struct.Struct("<Q")


class ExtentCodec:
    """Writes, seals and verifies extents of one layout in one namespace.

    Buffers are writable memoryviews of bytes, `layout.extent_bytes` long.
    """

    def __init__(self, layout: ExtentLayout, namespace: bytes) -> None:
        self.layout = layout
        self.namespace = namespace
        n_runs = layout.n_layers * layout.n_heads
        self._sums = struct.Struct(f"<{n_runs}Q")
        self._blank = _FIXED.pack(
            MAGIC, FORMAT_VERSION, layout.dtype.value, layout.header_bytes, 0, namespace, b"", b"", b"", 0, 0, 0,
            layout.block_tokens, *layout.layers, *layout.heads, layout.k_dim, layout.v_dim, layout.segment_bytes,
        ) + bytes(layout.header_bytes - FIXED_BYTES)  # fmt: skip
        self._runs = [
            slice(start + head * layout.run_bytes, start + (head + 1) * layout.run_bytes)
            for layer in range(*layout.layers)
            for start in (layout.layer_range(layer)[0],)
            for head in range(layout.n_heads)
        ]

    def write_header(self, buffer: memoryview, block: TokenBlock) -> None:
        """Write the header of `block`, not sealed yet."""
        layout = self.layout
        fits = len(block.extra) <= EXTRA_BYTES
        buffer[: layout.header_bytes] = self._blank
        _OWN.pack_into(buffer, _HASH_OFFSET, *block.key, block.index, layout.group,
                       len(block.extra) if fits else EXTRA_LEFT_OUT)  # fmt: skip
        buffer[FIXED_BYTES : layout.sums_offset] = block.token_bytes
        if fits:
            buffer[layout.extra_offset : layout.extra_offset + len(block.extra)] = block.extra

    def seal(self, buffer: memoryview) -> None:
        """Fill in the sums of every run, then that of the header."""
        self._sums.pack_into(buffer, self.layout.sums_offset, *_sums_of(buffer, self._runs))
        _SUM.pack_into(buffer, _SUM_OFFSET, self._header_sum(buffer))

    def verify(self, buffer: memoryview, expected: BlockHash) -> None:
        """Raise `StoreError` (CORRUPT) unless this is a whole sealed extent of block `expected`."""
        self.verify_header(buffer, expected)
        self.verify_layers(buffer, (0, self.layout.n_layers))

    def verify_layers(self, buffer: memoryview, layers: tuple[int, int]) -> None:
        """Raise `StoreError` (CORRUPT) unless layers [first, last) are what the header, verified before, has sums of.

        They count from the extent's first.
        """
        n_heads = self.layout.n_heads
        runs = slice(layers[0] * n_heads, layers[1] * n_heads)
        n_runs = runs.stop - runs.start
        stored = struct.unpack_from(f"<{n_runs}Q", buffer, self.layout.sums_offset + _SUM.size * runs.start)
        found = _sums_of(buffer, self._runs[runs])
        if found != stored:
            index = next(index for index, pair in enumerate(zip(found, stored, strict=True)) if pair[0] != pair[1])
            layer, head = divmod(runs.start + index, n_heads)
            raise StoreError(Cause.CORRUPT, f"sum of layer {layer}, head {head} does not match")

    def verify_header(self, buffer: memoryview, expected: BlockHash) -> None:
        """Raise `StoreError` (CORRUPT) unless the header is sealed and is block `expected`'s."""
        layout = self.layout
        stored = _SUM.unpack_from(buffer, _SUM_OFFSET)[0]
        if not stored or stored != self._header_sum(buffer):
            raise StoreError(Cause.CORRUPT, "header sum does not match")
        fields = _FIXED.unpack_from(buffer)
        if fields[:2] != (MAGIC, FORMAT_VERSION) or fields[5:7] != (self.namespace, expected):
            raise StoreError(Cause.CORRUPT, "header is of another block")
        if (fields[2], *fields[12:]) != (
            layout.dtype.value, layout.block_tokens, *layout.layers, *layout.heads,
            layout.k_dim, layout.v_dim, layout.segment_bytes,
        ):  # fmt: skip
            raise StoreError(Cause.CORRUPT, "header is of another geometry")

    def is_block(self, buffer: memoryview, expected: BlockHash) -> bool:
        """Whether a host slot's header names `expected`; no sums."""
        return buffer[_HASH_OFFSET : _HASH_OFFSET + 16] == expected

    def read_block(self, buffer: memoryview) -> TokenBlock:
        """The block a verified header describes."""
        layout = self.layout
        fields = _FIXED.unpack_from(buffer)
        n_extra = 0 if fields[11] == EXTRA_LEFT_OUT else fields[11]
        key = BlockKey(BlockHash(fields[6]), BlockHash(fields[7]), BlockHash(fields[8]))
        tokens = bytes(buffer[FIXED_BYTES : layout.sums_offset])
        extra = bytes(buffer[layout.extra_offset : layout.extra_offset + n_extra])
        return TokenBlock(key, fields[9], tokens, extra)

    def _header_sum(self, buffer: memoryview) -> int:
        """xxh3-64 of the header with its own field zero; never 0."""
        state = xxhash.xxh3_64(buffer[:_SUM_OFFSET])
        state.update(bytes(8))
        state.update(buffer[_SUM_OFFSET + 8 : self.layout.header_bytes])
        return state.intdigest() or 1


def _sums_of(buffer: memoryview, runs: Sequence[slice]) -> tuple[int, ...]:
    return tuple(map(xxhash.xxh3_64_intdigest, map(buffer.__getitem__, runs)))
