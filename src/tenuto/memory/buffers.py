"""Memory that somebody gives for blocks: whether it is what a `Layout` says, and its bytes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tenuto.errors import ConfigError
from tenuto.memory.blocklayout import Layout

NUMPY = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
"""numpy's types; it has no bfloat16, whose bits these are. Other types are bytes there."""


def torch_dtype(dtype: str) -> Any:
    """Torch's type of a layout's; torch has been imported."""
    return getattr(sys.modules["torch"], "uint8" if dtype == "bytes" else dtype)


def flat_bytes(buffer: Any, layout: Layout, *, is_layer: bool) -> Any:
    """The bytes of a buffer for all blocks, or for one layer of them: a flat uint8 array, or tensor. No copy is made.

    Raises `ConfigError` for what is too small, not contiguous or not writable, or an array of another type or shape.
    """
    torch = sys.modules.get("torch")  # what is a tensor has imported it
    if torch is not None and isinstance(buffer, torch.Tensor):
        if not buffer.is_contiguous():
            raise ConfigError("buffer: the tensor is not contiguous; give one that is, so that no copy is made")
        _require_fit(buffer, buffer.dtype in (torch.uint8, torch_dtype(layout.dtype)), layout, is_layer)
        flat, address = buffer.detach().reshape(-1).view(torch.uint8), buffer.data_ptr()
    else:
        array = _array_of(buffer)
        is_typed = array.dtype == np.dtype(NUMPY.get(layout.dtype, "u1")) or array.dtype.name == layout.dtype
        _require_fit(array, is_typed or array.dtype == np.uint8, layout, is_layer)
        flat, address = array.reshape(-1).view(np.uint8), array.ctypes.data
    n_bytes = layout.region_bytes if is_layer else layout.buffer_bytes
    if len(flat) < n_bytes:
        raise ConfigError(f"buffer: {len(flat)} bytes are too few; give {n_bytes}{_spread(layout)}")
    if address % layout.itemsize:
        raise ConfigError(f"buffer: it begins at {address:#x}, between two elements of {layout.itemsize} bytes")
    return flat[:n_bytes]


def require_apart(regions: Sequence[Any]) -> None:
    """Raise `ConfigError` unless buffers are in memory of one device and no two share a byte."""
    places = {"cpu" if isinstance(region, np.ndarray) else str(region.device) for region in regions}
    if len(places) > 1:
        raise ConfigError(f"buffer: the layers are on {' and '.join(sorted(places))}; give memory of one device")
    spans = sorted((_address(region), number) for number, region in enumerate(regions))
    for (low, first), (high, second) in pairwise(spans):
        if low + len(regions[first]) > high:
            one, other = sorted((first, second))
            raise ConfigError(f"buffer: those of layers {one} and {other} share memory; give each its own")


def _address(flat: Any) -> int:
    return flat.ctypes.data if isinstance(flat, np.ndarray) else flat.data_ptr()


def _array_of(buffer: Any) -> Any:
    try:
        array: Any = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise ConfigError(f"buffer: {type(buffer).__name__} gives no memory ({error}); give an array") from None
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise ConfigError("buffer: the array is not contiguous or not writable; give one that is")
    return array


def _require_fit(array: Any, is_typed: bool, layout: Layout, is_layer: bool) -> None:
    """An array is flat, or has the layout's axes; the last one may be cut up, as into heads."""
    shape = layout.shape[1:] if is_layer and layout.kind == "per layer" else layout.shape
    given = tuple(array.shape)
    wanted = f"give {layout.dtype} of the shape {shape}, or flat bytes{_spread(layout)}"
    if not is_typed:
        raise ConfigError(f"buffer: {array.dtype} is not the layout's {layout.dtype}; {wanted}")
    if len(given) == 1:
        return
    axes = [axis for axis in (shape, (*shape[:-3], *shape[-2:])) if axis is shape or layout.outer_dim == 1]
    n_lead = [len(axis) - 1 for axis in axes if given[: len(axis) - 1] == axis[:-1]]
    if not any(int(np.prod(given[n:])) == layout.inner_dim for n in n_lead) or array.dtype.itemsize != layout.itemsize:
        raise ConfigError(f"buffer: the shape {given} of {array.dtype} is not the layout's; {wanted}")


def _spread(layout: Layout) -> str:
    """What there is to know where blocks have gaps between them."""
    n_bytes = layout.layer_bytes * (layout.n_layers if layout.kind == "contiguous" else 1)
    if layout.block_stride == n_bytes:
        return ""
    return (
        f" (a block has {n_bytes} bytes, and an alignment of {layout.alignment} puts them {layout.block_stride} apart: "
        f"a layout with alignment={layout.itemsize} has no gaps)"
    )
