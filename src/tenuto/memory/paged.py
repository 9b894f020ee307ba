"""An engine's paged KV cache as addresses, and its movement to and from extents on the CPU.

Copies keep every bit: source and target have one dtype. Each engine page is one strided copy over all layers, heads
and tokens. On a GPU the kernels of `tenuto.memory.kernels` do the same from the addresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from tenuto.errors import UnsupportedModelError
from tenuto.memory.arena import HostArena
from tenuto.memory.formats import DTYPES, KvFormat, KvTensors, LayerViews, detect_format, shape_text
from tenuto.memory.layout import ExtentLayout
from tenuto.memory.pages import PageRun


class PagedKV:
    """The registered KV tensors of one engine, in layer order, by addresses.

    Row (layer, page, head, plane, token) is the `row_bytes` bytes at ``addresses[layer][plane] + page × page_stride +
    head × head_stride + token × token_stride``; strides are in bytes. Pages here are the engine's kernels'; the
    manager's, which a `PageRun` names, are `pages_ratio` of them each, in a row. `kv_format` declares the arrangement;
    without it, it is told from the shapes. Raises `UnsupportedModelError` for what is not exactly understood.
    """

    def __init__(
        self, tensors: KvTensors, layout: ExtentLayout, page_tokens: int, kv_format: KvFormat | None = None
    ) -> None:
        self.layout = layout
        self.page_tokens = page_tokens
        """Tokens of one of the manager's pages."""
        self.views = _views(tensors, layout, page_tokens, kv_format)
        """Per layer, one view of both planes or one of each: ``(planes, pages, heads, tokens, dim)``."""
        first = self.views[0][0]
        itemsize = first.element_size()
        self.device = first.device
        self.dtype = first.dtype
        self.n_planes = layout.n_planes
        self.n_kernel_pages, self.kernel_page_tokens = first.shape[1], first.shape[3]
        self.pages_ratio = page_tokens // self.kernel_page_tokens
        self.n_pages = self.n_kernel_pages // self.pages_ratio
        """The manager's pages."""
        self.pages_per_block = layout.block_tokens // self.kernel_page_tokens
        """Kernel pages in a block: the width of `page_table`."""
        self.row_bytes = layout.k_dim * itemsize
        _, self.page_stride, self.head_stride, self.token_stride, _ = (n * itemsize for n in first.stride())
        self.addresses = tuple(
            tuple(plane.data_ptr() for group in layer for plane in group.unbind(0)) for layer in self.views
        )
        distances = {planes[-1] - planes[0] for planes in self.addresses}
        self.plane_stride = distances.pop() if len(distances) == 1 else 0
        """From K to V; 0 where there is one plane, or the distance is not the same in all layers."""
        stacked = list(self._stacked())
        self._stacks = [stack for _, _, stack in stacked]
        self._corners = [(layer, plane) for layer, plane, _ in stacked]

    @property
    def bases(self) -> tuple[int, ...]:
        """The address of the first K of each layer."""
        return tuple(planes[0] for planes in self.addresses)

    def page_table(self, runs: Sequence[PageRun]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Kernel pages of each block, ``(n_blocks, pages_per_block)``, and how many of its first a load leaves alone.

        Raises `ValueError` for pages that are no block, or that the engine does not have.
        """
        per_block = self.layout.block_tokens // self.page_tokens
        if any(len(run.pages) != per_block for run in runs):
            raise ValueError(f"a run of other than {per_block} pages is no block")
        pages = np.array([run.pages for run in runs], np.int32).reshape(len(runs), per_block)
        if pages.size and not 0 <= pages.min() <= pages.max() < self.n_pages:
            raise ValueError(f"pages {pages.min()} to {pages.max()} are not all of the engine's {self.n_pages}")
        first = np.array([run.first for run in runs], np.int32) * np.int32(self.pages_ratio)
        if self.pages_ratio == 1:
            return pages, first
        parts = pages[:, :, None] * np.int32(self.pages_ratio) + np.arange(self.pages_ratio, dtype=np.int32)
        return parts.reshape(len(runs), self.pages_per_block), first

    def gather(
        self, runs: Sequence[PageRun], arena: ArenaView, slots: Sequence[int], layers: tuple[int, int] | None = None
    ) -> None:
        """Copy engine pages into the payloads of host slots: all layers, or a half-open range of them."""
        for page, host in self._pairs(runs, arena, slots, layers):
            host.copy_(page)

    def scatter(
        self, runs: Sequence[PageRun], arena: ArenaView, slots: Sequence[int], layers: tuple[int, int] | None = None
    ) -> None:
        """Copy payloads of host slots into engine pages: all layers, or a half-open range of them."""
        for page, host in self._pairs(runs, arena, slots, layers):
            page.copy_(host)

    def _pairs(
        self, runs: Sequence[PageRun], arena: ArenaView, slots: Sequence[int], layers: tuple[int, int] | None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(part of an engine page, of a host payload), each (layers, heads, planes, ratio, kernel page tokens, dim)."""
        per_block = self.layout.block_tokens // self.page_tokens
        start, stop = layers or (0, self.layout.n_layers)
        parts = [
            (
                max(layer, start),
                min(layer + stack.shape[1], stop),
                plane,
                stack[:, max(start - layer, 0) : stop - layer],
            )
            for (layer, plane), stack in zip(self._corners, self._stacks, strict=True)
            if layer < stop and layer + stack.shape[1] > start
        ]
        for run, slot in zip(runs, slots, strict=True):
            if len(run.pages) != per_block:
                raise ValueError(f"{len(run.pages)} pages are no block of {per_block}")
            payload = arena.payload[slot]
            for at in range(run.first, len(run.pages)):
                tokens = slice(at * self.page_tokens, (at + 1) * self.page_tokens)
                for first, last, plane, stack in parts:
                    page = stack[run.pages[at]]
                    host = payload[first:last, :, plane : plane + page.shape[2], tokens]
                    yield page, host.unflatten(3, page.shape[3:5])

    def _stacked(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """(first layer, first plane, (pages, layers, heads, planes, ratio, kernel page tokens, dim)) of all memory."""
        plane = 0
        for group in range(len(self.views[0])):
            layer = 0
            for stack in _stack_layers([views[group] for views in self.views]):
                whole = stack[:, :, : self.n_pages * self.pages_ratio].unflatten(2, (-1, self.pages_ratio))
                yield layer, plane, whole.permute(2, 0, 4, 1, 3, 5, 6)
                layer += stack.shape[0]
            plane += self.views[0][group].shape[0]


class ArenaView:
    """A host arena seen as payloads: `payload[slot]` is ``(layers, heads, planes, block_tokens, dim)``."""

    def __init__(self, arena: HostArena, layout: ExtentLayout, dtype: torch.dtype) -> None:
        size = layout.dtype.itemsize
        dim, run, tokens = layout.k_dim, layout.run_bytes // size, layout.block_tokens
        flat = torch.frombuffer(arena.view, dtype=torch.uint8).view(dtype)
        self.payload = flat.as_strided(
            (arena.n_slots, layout.n_layers, layout.n_heads, layout.n_planes, tokens, dim),
            (layout.extent_bytes // size, layout.segment_bytes // size, run, tokens * dim, dim, 1),
            layout.header_bytes // size,
        )


def _views(tensors: KvTensors, layout: ExtentLayout, page_tokens: int, kv_format: KvFormat | None) -> LayerViews:
    if layout.v_dim not in (0, layout.k_dim):
        raise UnsupportedModelError(
            f"K dim {layout.k_dim} and V dim {layout.v_dim}: only equal dims, or one latent, are supported"
        )
    if kv_format is None:
        kv_format, views = detect_format(tensors, layout, page_tokens)
    else:
        views = kv_format.views(tensors, layout, page_tokens)
        if views is None:
            raise UnsupportedModelError(
                f"KV cache of {shape_text(tensors)} is not {kv_format.nesting.value} with axes {kv_format.axes}, "
                f"{layout.n_layers} layers, {layout.n_heads} heads, {page_tokens} tokens a page, K dim {layout.k_dim} "
                f"and V dim {layout.v_dim}, as declared: this attention backend is not supported yet"
            )
    _refuse_uneven(views, layout)
    return views


def _refuse_uneven(views: LayerViews, layout: ExtentLayout) -> None:
    """Raise where one set of strides does not tell all memory, or two rows may share a byte."""
    every = [view for layer in views for view in layer]
    for view in every:
        if DTYPES.get(view.dtype) is not layout.dtype:  # a copy would convert
            raise UnsupportedModelError(
                f"KV cache of {view.dtype}, not {layout.dtype.name.lower()} like the rest: "
                "layers of different types are not supported"
            )
        if view.shape != every[0].shape or view.stride()[1:] != every[0].stride()[1:] or view.device != every[0].device:
            raise UnsupportedModelError(
                f"KV tensors of shape {tuple(every[0].shape)} and strides {every[0].stride()} beside "
                f"{tuple(view.shape)} and {view.stride()}: layers of different geometry are not supported"
            )
        span = 1
        for stride, size in sorted(zip(view.stride(), view.shape, strict=True)):
            if size > 1 and stride < span:
                raise UnsupportedModelError(
                    f"KV cache of strides {view.stride()} for shape {tuple(view.shape)}: rows overlap or are not "
                    "contiguous, this is no arrangement of whole pages"
                )
            span = stride * size if size > 1 else span
        if view.shape[-1] > 1 and view.stride(-1) != 1:
            raise UnsupportedModelError(f"KV cache of strides {view.stride()}: the dims of a head are not contiguous")


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
