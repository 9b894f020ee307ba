"""Launches the Triton kernels for one `PagedKV`."""

from __future__ import annotations

import importlib
import math
from typing import Any, Protocol

import torch

from tenuto.errors import ConfigError
from tenuto.memory.layout import ExtentLayout
from tenuto.memory.paged import PagedKV

TILE_BYTES = 32 << 10
"""Moved by a program in one step."""
MAX_CHUNK_BYTES = 1 << 10
MAX_TILE_CHUNKS = 2048
_VECTOR_BYTES = 16  # what one thread moves at once
_N_WARPS = 8


class Mover(Protocol):
    """Moves whole blocks, or one layer's tokens, between paged KV and payloads.

    A payload is a row of bytes as in an extent behind its header: `segment_bytes` a layer. Rows are uint8 tensors
    ``(n_blocks, bytes)`` with contiguous rows, 16-byte aligned, in device memory or, for `BlockMover`, in pinned host
    memory; padding of segments is left alone. Nothing is checked against the engine's memory: page and slot numbers
    must be its own. `ValueError` for rows that are too short, too few or unaligned.
    """

    def gather(
        self, pages: torch.Tensor, out: torch.Tensor, n_programs: int, layers: tuple[int, int] | None = None
    ) -> None:
        """Copy blocks out: `pages` int32 ``(n_blocks, pages_per_block)``, see `PagedKV.page_table`.

        `layers` is a half-open range that counts from this extent's first; rows then hold these layers only.
        """
        ...

    def scatter(
        self,
        pages: torch.Tensor,
        first: torch.Tensor,
        source: torch.Tensor,
        n_programs: int,
        layers: tuple[int, int] | None = None,
    ) -> None:
        """Copy blocks in; the first `first` pages of each block, int32 ``(n_blocks,)``, are left alone."""
        ...

    def gather_layer(self, layer: int, slots: torch.Tensor, out: torch.Tensor, n_programs: int) -> None:
        """Copy one layer's tokens out: token t lies in slot ``slots[t]`` and becomes one of block t // block_tokens.

        `slots` is int64 ``(n_tokens,)``, a slot being page × page_tokens + offset; the last block may be partial. A
        negative slot's token is left out.
        """
        ...

    def scatter_layer(self, layer: int, slots: torch.Tensor, source: torch.Tensor, n_programs: int) -> None:
        """Copy one layer's tokens in; see `gather_layer`."""
        ...


class BlockMover:
    """A `Mover` by Triton, in one launch a call on torch's current stream; it neither waits nor allocates.

    A program moves `tile_bytes` in one step. Raises `ConfigError` where Triton is not installed.
    """

    def __init__(self, kv: PagedKV, tile_bytes: int = TILE_BYTES) -> None:
        try:
            self._kernels = importlib.import_module("tenuto.memory.kernels.copy")
        except ImportError as error:
            raise ConfigError(f"copies on a GPU need Triton, which can't be imported: {error}; install it") from None
        self._layout = kv.layout
        self._kv = kv  # keeps the memory alive
        self._pages_per_block = kv.pages_per_block
        self._table = torch.tensor(kv.addresses, dtype=torch.int64).flatten().to(kv.device)
        shared = _shared_constants(kv)
        n_tokens = kv.kernel_page_tokens
        n_rows = 1 if kv.token_stride == kv.row_bytes else n_tokens  # in a page: tokens side by side are one row
        self._blocks = shared | _cut(kv, kv.row_bytes * n_tokens // n_rows, tile_bytes, self._kernels.tl)
        self._blocks |= {
            "PAGES": kv.pages_per_block, "TOKENS": n_rows, "SEGMENT_BYTES": kv.layout.segment_bytes,
        }  # fmt: skip
        self._layer = shared | _cut(kv, kv.row_bytes, tile_bytes, self._kernels.tl)
        self._layer |= {"BLOCK_TOKENS": kv.layout.block_tokens, "TOKENS": n_tokens}

    def gather(
        self, pages: torch.Tensor, out: torch.Tensor, n_programs: int, layers: tuple[int, int] | None = None
    ) -> None:
        """See `Mover`."""
        self._move(pages, pages, out, n_programs, layers, is_gather=True)

    def scatter(
        self,
        pages: torch.Tensor,
        first: torch.Tensor,
        source: torch.Tensor,
        n_programs: int,
        layers: tuple[int, int] | None = None,
    ) -> None:
        """See `Mover`."""
        self._move(pages, first, source, n_programs, layers, is_gather=False)

    def gather_layer(self, layer: int, slots: torch.Tensor, out: torch.Tensor, n_programs: int) -> None:
        """See `Mover`."""
        self._move_layer(layer, slots, out, n_programs, is_gather=True)

    def scatter_layer(self, layer: int, slots: torch.Tensor, source: torch.Tensor, n_programs: int) -> None:
        """See `Mover`."""
        self._move_layer(layer, slots, source, n_programs, is_gather=False)

    def warm_up(self) -> None:
        """Compile all kernels (seconds, once), by moving nothing. Afterwards no call compiles."""
        device = self._table.device
        pages = torch.empty((0, self._pages_per_block), dtype=torch.int32, device=device)
        slots = torch.empty(0, dtype=torch.int64, device=device)
        nothing = torch.empty((0, self._layout.payload_bytes), dtype=torch.uint8, device=device)
        self.gather(pages, nothing, 1)
        self.scatter(pages, pages, nothing, 1)
        self.gather_layer(0, slots, nothing, 1)
        self.scatter_layer(0, slots, nothing, 1)

    def _move(
        self, pages: torch.Tensor, first: torch.Tensor, rows: torch.Tensor, n_programs: int,
        layers: tuple[int, int] | None, *, is_gather: bool,
    ) -> None:  # fmt: skip
        start, stop = layers or (0, self._layout.n_layers)
        n_blocks = pages.shape[0]
        address, stride = check_rows(rows, n_blocks, (stop - start) * self._layout.segment_bytes)
        if pages.shape[1] != self._pages_per_block or not pages.is_contiguous():
            raise ValueError(f"pages of shape {tuple(pages.shape)} are not rows of {self._pages_per_block}")
        self._kernels.move_blocks[(n_programs,)](
            self._table, pages, first, address, stride, n_blocks, start, stop - start,
            IS_GATHER=is_gather, num_warps=_N_WARPS, **self._blocks,
        )  # fmt: skip

    def _move_layer(
        self, layer: int, slots: torch.Tensor, rows: torch.Tensor, n_programs: int, *, is_gather: bool
    ) -> None:
        n_tokens = slots.shape[0]
        n_blocks = -(-n_tokens // self._layout.block_tokens)
        address, stride = check_rows(rows, n_blocks, self._layout.n_heads * self._layout.run_bytes)
        self._kernels.move_layer[(n_programs,)](
            self._table, slots, address, stride, n_tokens, layer,
            IS_GATHER=is_gather, num_warps=_N_WARPS, **self._layer,
        )  # fmt: skip


def check_rows(rows: torch.Tensor, n_blocks: int, n_bytes: int) -> tuple[int, int]:
    """Address and stride of rows. Raises `ValueError` where they can't hold so many blocks of so many bytes."""
    address, stride = rows.data_ptr(), rows.stride(0)
    if rows.dtype != torch.uint8 or rows.stride(1) != 1 or rows.shape[0] < n_blocks or rows.shape[1] < n_bytes:
        raise ValueError(
            f"{rows.dtype} rows of shape {tuple(rows.shape)} can't hold {n_blocks} blocks of {n_bytes} bytes"
        )
    if (address | stride) % _VECTOR_BYTES and n_blocks:
        raise ValueError(f"rows at {address:#x}, {stride} bytes apart, are not aligned to {_VECTOR_BYTES} bytes")
    return address, stride


def _shared_constants(kv: PagedKV) -> dict[str, Any]:
    layout: ExtentLayout = kv.layout
    return {
        "HEADS": layout.n_heads, "PLANES": kv.n_planes, "PAGE_STRIDE": kv.page_stride,
        "HEAD_STRIDE": kv.head_stride if layout.n_heads > 1 else 0,
        "TOKEN_STRIDE": kv.token_stride if kv.kernel_page_tokens > 1 else 0,
    }  # fmt: skip


def _cut(kv: PagedKV, row_bytes: int, tile_bytes: int, language: Any) -> dict[str, Any]:
    """How rows are cut into words, chunks and tiles; `row_bytes` are contiguous in paged memory and in payloads."""
    strides = [kv.page_stride, kv.row_bytes]
    strides += [kv.head_stride] * (kv.layout.n_heads > 1) + [kv.token_stride] * (kv.kernel_page_tokens > 1)
    common = math.gcd(_VECTOR_BYTES, *strides, *(address for planes in kv.addresses for address in planes))
    word_bytes = min(common, 8)
    chunk_bytes = math.gcd(row_bytes, MAX_CHUNK_BYTES)
    segment_bytes = kv.layout.n_heads * kv.layout.run_bytes
    n_chunks = min(min(tile_bytes, segment_bytes) // chunk_bytes, MAX_TILE_CHUNKS)
    return {
        "ROW_CHUNKS": row_bytes // chunk_bytes, "CHUNK_WORDS": chunk_bytes // word_bytes,
        "TILE_CHUNKS": 1 << (n_chunks - 1).bit_length(),
        "WORD": getattr(language, f"int{8 * word_bytes}"), "WORD_BYTES": word_bytes, "ALIGNMENT": common,
    }  # fmt: skip
