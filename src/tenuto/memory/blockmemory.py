"""Blocks of a `Layout` in a buffer: numpy arrays, torch tensors, or anything that gives its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tenuto.errors import ConfigError
from tenuto.memory.blocklayout import Layout
from tenuto.memory.buffers import NUMPY, flat_bytes, require_apart, torch_dtype

Bytes = npt.NDArray[np.uint8]


class BlockMemory:
    """A layout's blocks in given memory, which stays its owner's; `view` is where keys and values are computed.

    `buffer` is one for all (`Layout.buffer_bytes`), or, in the layout "per layer", a sequence of one for each layer
    (`Layout.region_bytes`), used from its first byte on: a plane is at `Layout.offset`. Numpy arrays or torch tensors,
    contiguous and writable: flat, of bytes or the layout's type, or of `Layout.shape` (a layer's is without the axis of
    layers; the last axis may be cut up, as into heads; the one of a single latent left out). Or objects with the buffer
    protocol, of at least the size. Raises `ConfigError` for what is not so, and for layers that share memory.
    """

    def __init__(self, layout: Layout, buffer: Any) -> None:
        self.layout = layout
        is_split = isinstance(buffer, list | tuple)
        buffers: Sequence[Any] = buffer if is_split else [buffer]
        if is_split and (layout.kind != "per layer" or len(buffers) != layout.n_layers):
            raise ConfigError(
                f"buffer: {len(buffers)} buffers for {layout.n_layers} layers of the kind {layout.kind!r}; "
                'give one buffer, or with the kind "per layer" one for each layer'
            )
        self._regions = [flat_bytes(one, layout, is_layer=is_split) for one in buffers]
        require_apart(self._regions)
        self._owners = buffers

    @property
    def torch_device(self) -> Any:
        """The `torch.device` of a GPU's memory; None for memory that the CPU reads and writes."""
        region = self._regions[0]
        return None if isinstance(region, np.ndarray) or region.device.type == "cpu" else region.device

    def view(self, block: int, layer: int, outer: int) -> Any:
        """The plane ``(page_tokens, inner_dim)``, writable: a torch tensor over torch memory, else a numpy array.

        numpy has bfloat16 as uint16, and 8-bit floats and bytes as uint8. Raises `IndexError`.
        """
        layout = self.layout
        at = layout.offset(block, layer, outer)
        region = self._regions[0]
        if len(self._regions) > 1:
            region, at = self._regions[layer], at - layer * layout.layer_stride
        plane = region[at : at + layout.plane_bytes]
        if isinstance(plane, np.ndarray):
            typed: Any = plane.view(NUMPY.get(layout.dtype, "u1"))
        else:
            typed = plane.view(torch_dtype(layout.dtype))
        return typed.reshape(layout.page_tokens, layout.inner_dim)

    def stacks(self) -> list[Bytes]:
        """All of the CPU's memory as bytes ``(n_blocks, layers, layer_bytes)``, a stack of layers for each buffer."""
        layout = self.layout
        n_layers = layout.n_layers if len(self._regions) == 1 else 1
        shape = (layout.n_blocks, n_layers, layout.layer_bytes)
        strides = (layout.block_stride, layout.layer_stride if n_layers > 1 else layout.layer_bytes, 1)
        flat = [region if isinstance(region, np.ndarray) else region.numpy() for region in self._regions]
        return [np.lib.stride_tricks.as_strided(region, shape, strides) for region in flat]

    def tensors(self) -> list[Any]:
        """Torch's memory as a tensor for each layer: ``(n_blocks, outer_dim, page_tokens, 1, inner_dim)``.

        One latent is ``(n_blocks, page_tokens, inner_dim)``.
        """
        layout, size = self.layout, self.layout.itemsize
        shape = (layout.n_blocks, layout.outer_dim, layout.page_tokens, 1, layout.inner_dim)
        inner = layout.inner_dim
        strides = (layout.block_stride // size, layout.plane_bytes // size, inner, inner, 1)
        if layout.outer_dim == 1:
            shape, strides = (shape[0], shape[2], shape[4]), (strides[0], inner, 1)
        dtype = torch_dtype(layout.dtype)
        found: list[Any] = []
        for layer in range(layout.n_layers):
            region, at = self._regions[0], layer * layout.layer_stride
            if len(self._regions) > 1:
                region, at = self._regions[layer], 0
            whole = region.view(dtype)
            found.append(whole.as_strided(shape, strides, whole.storage_offset() + at // size))
        return found

    def __repr__(self) -> str:
        return f"<BlockMemory {self.layout.n_blocks} blocks, {self.layout.buffer_bytes} bytes>"
