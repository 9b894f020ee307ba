"""The geometry of an extent: what one rank stores of one block. See docs/format.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tenuto.errors import ConfigError

PAGE_BYTES = 4096
FIXED_BYTES = 128
EXTRA_BYTES = 256  # room kept for extra keys
MIN_SEGMENT_BYTES = 256 << 10
MIN_BLOCK_TOKENS, MAX_BLOCK_TOKENS = 64, 256


def align_up(n: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is at least `n`."""
    return -(-n // alignment) * alignment


class Dtype(Enum):
    """Element types; the value is the code in the header."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT8_E4M3FN = 4
    FLOAT8_E5M2 = 5
    BYTES = 6

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return {1: 4, 2: 2, 3: 2}.get(self.value, 1)


@dataclass(frozen=True, slots=True)
class ExtentLayout:
    """Payload ``[layer][head][k, v][token][dim]``; layer and head ranges are half-open."""

    block_tokens: int
    layers: tuple[int, int]
    heads: tuple[int, int]
    k_dim: int
    v_dim: int
    dtype: Dtype
    group: int = 0

    @property
    def n_layers(self) -> int:
        """Layers in this extent."""
        return self.layers[1] - self.layers[0]

    @property
    def n_heads(self) -> int:
        """KV heads in this extent."""
        return self.heads[1] - self.heads[0]

    @property
    def n_planes(self) -> int:
        """K and V, or one latent (MLA)."""
        return 2 if self.v_dim else 1

    @property
    def run_bytes(self) -> int:
        """Bytes of one (layer, head)."""
        return self.block_tokens * (self.k_dim + self.v_dim) * self.dtype.itemsize

    @property
    def segment_bytes(self) -> int:
        """Bytes of one layer, padded to a page."""
        return align_up(self.n_heads * self.run_bytes, PAGE_BYTES)

    @property
    def sums_offset(self) -> int:
        """Where the sums start."""
        return FIXED_BYTES + 4 * self.block_tokens

    @property
    def extra_offset(self) -> int:
        """Where the extra keys start."""
        return self.sums_offset + 8 * self.n_layers * self.n_heads

    @property
    def header_bytes(self) -> int:
        """Bytes of the header, padded to a page."""
        return align_up(self.extra_offset + EXTRA_BYTES, PAGE_BYTES)

    @property
    def payload_bytes(self) -> int:
        """Bytes of what stands behind the header."""
        return self.n_layers * self.segment_bytes

    @property
    def extent_bytes(self) -> int:
        """Bytes of the whole extent."""
        return self.header_bytes + self.payload_bytes

    def layer_range(self, layer: int) -> tuple[int, int]:
        """Byte range of `layer` (absolute number) in the extent."""
        start = self.header_bytes + (layer - self.layers[0]) * self.segment_bytes
        return start, start + self.segment_bytes


def choose_block_tokens(wanted: int, engine_block_tokens: int, token_bytes_per_layer: int) -> int:
    """Tokens per block: `wanted`, or by the auto rule of docs/format.md when it is 0.

    Raises `ConfigError` when `wanted` is not a multiple of the engine's block.
    """
    if wanted:
        if wanted % engine_block_tokens:
            raise ConfigError(
                f"layout.block_tokens: {wanted} is not a multiple of the engine's block of "
                f"{engine_block_tokens} tokens; give a multiple, or 0 to have it chosen"
            )
        return wanted
    least = max(MIN_BLOCK_TOKENS, -(-MIN_SEGMENT_BYTES // token_bytes_per_layer))
    most = max(MAX_BLOCK_TOKENS // engine_block_tokens, 1) * engine_block_tokens
    return min(align_up(least, engine_block_tokens), most)
