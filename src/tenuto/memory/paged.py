"""Movement between an engine's paged KV cache and extents, on the CPU.

Copies keep every bit: source and target have one dtype. Each engine page is one strided copy over all layers, heads
and tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from tenuto.errors import UnsupportedModelError
from tenuto.memory.arena import HostArena
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.memory.pages import PageRun

DTYPES = {
    torch.float32: Dtype.FLOAT32,
    torch.float16: Dtype.FLOAT16,
    torch.bfloat16: Dtype.BFLOAT16,
    torch.float8_e4m3fn: Dtype.FLOAT8_E4M3FN,
    torch.float8_e5m2: Dtype.FLOAT8_E5M2,
    torch.uint8: Dtype.BYTES,
    torch.int8: Dtype.BYTES,
}


class PagedKV:
    """The registered KV tensors of one engine, one per layer, in layer order.

    Each is ``(n_pages, heads, page_tokens, k_dim + v_dim)``, K and V packed in the last dimension, with any strides.
    Raises `UnsupportedModelError` for anything else.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], layout: ExtentLayout, page_tokens: int) -> None:
        self.layout = layout
        self.page_tokens = page_tokens
        self.pages_per_block = layout.block_tokens // page_tokens
        packed = layout.k_dim + layout.v_dim
        for tensor in tensors:
            shape = tuple(tensor.shape)
            if shape[1:] != (layout.n_heads, page_tokens, packed):
                raise UnsupportedModelError(
                    f"KV cache of shape {shape} is not (pages, {layout.n_heads} heads, {page_tokens} "
                    f"tokens, {packed} = K + V dims): this attention backend is not supported yet"
                )
            if DTYPES.get(tensor.dtype) is not layout.dtype:  # a copy would convert
                raise UnsupportedModelError(
                    f"KV cache of {tensor.dtype}, not {layout.dtype.name.lower()} like the rest: "
                    "layers of different types are not supported"
                )
        if len(tensors) != layout.n_layers or layout.k_dim != layout.v_dim:
            raise UnsupportedModelError(
                f"{len(tensors)} KV tensors with K dim {layout.k_dim} and V dim {layout.v_dim}: only "
                f"models with one KV tensor per layer ({layout.n_layers}) and equal dims are supported"
            )
        self.n_pages = tensors[0].shape[0]
        self.device = tensors[0].device
        self.dtype = tensors[0].dtype
        self._stacks = [self._unpack(stack) for stack in _stack_layers(tensors)]

    def _unpack(self, stack: torch.Tensor) -> torch.Tensor:
        """(layers, pages, heads, tokens, 2·dim) → view (pages, layers, heads, 2, tokens, dim)."""
        split = stack.unflatten(-1, (2, self.layout.k_dim))
        return split.permute(1, 0, 2, 4, 3, 5)

    def gather(self, runs: Sequence[PageRun], arena: ArenaView, slots: Sequence[int]) -> None:
        """Copy engine pages into the payloads of host slots."""
        for page, host in self._pairs(runs, arena, slots):
            host.copy_(page)

    def scatter(self, runs: Sequence[PageRun], arena: ArenaView, slots: Sequence[int]) -> None:
        """Copy payloads of host slots into engine pages."""
        for page, host in self._pairs(runs, arena, slots):
            page.copy_(host)

    def _pairs(
        self, runs: Sequence[PageRun], arena: ArenaView, slots: Sequence[int]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(engine page, its part of a host payload), each (layers, heads, 2, page_tokens, dim)."""
        for run, slot in zip(runs, slots, strict=True):
            if len(run.pages) != self.pages_per_block:
                raise ValueError(f"{len(run.pages)} pages are no block of {self.pages_per_block}")
            payload = arena.payload[slot]
            for at in range(run.first, len(run.pages)):
                tokens = slice(at * self.page_tokens, (at + 1) * self.page_tokens)
                layer = 0
                for stack in self._stacks:
                    page = stack[run.pages[at]]
                    yield page, payload[layer : layer + page.shape[0], :, :, tokens]
                    layer += page.shape[0]


class ArenaView:
    """A host arena seen as payloads: `payload[slot]` is ``(layers, heads, 2, block_tokens, dim)``."""

    def __init__(self, arena: HostArena, layout: ExtentLayout, dtype: torch.dtype) -> None:
        size = layout.dtype.itemsize
        dim, run, tokens = layout.k_dim, layout.run_bytes // size, layout.block_tokens
        flat = torch.frombuffer(arena.view, dtype=torch.uint8).view(dtype)
        self.payload = flat.as_strided(
            (arena.n_slots, layout.n_layers, layout.n_heads, 2, tokens, dim),
            (layout.extent_bytes // size, layout.segment_bytes // size, run, tokens * dim, dim, 1),
            layout.header_bytes // size,
        )


def _stack_layers(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One view over all layers where they lie at a regular distance in one storage, else one per layer."""
    first = tensors[0]
    offsets = [tensor.storage_offset() for tensor in tensors]
    steps = {after - before for before, after in itertools.pairwise(offsets)}
    one_storage = len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    same = all(tensor.stride() == first.stride() and tensor.shape == first.shape for tensor in tensors)
    if one_storage and same and len(steps) <= 1 and all(step > 0 for step in steps):
        step = steps.pop() if steps else 1
        return [first.as_strided((len(tensors), *first.shape), (step, *first.stride()), offsets[0])]
    return [tensor.unsqueeze(0) for tensor in tensors]
