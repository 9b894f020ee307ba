"""KV tensors as engines lay them out, and the payload they must become, by numpy alone."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from tenuto.memory.formats import DTYPES
from tenuto.memory.layout import Dtype, ExtentLayout

N_PAGES, PAGE_TOKENS, PAGES_PER_BLOCK = 11, 4, 3
N_LAYERS, N_HEADS, DIM = 3, 2, 8
DTYPES_BY_CODE = {code: dtype for dtype, code in DTYPES.items()}

# Signalling and quiet NaNs with payloads, infinity, subnormals, -0: bits a conversion would not keep.
ODD_BITS = {
    1: np.array([0xFF, 0x80, 0x00, 0x01], np.uint8),
    2: np.array([0x7C01, 0xFE5A, 0x7C00, 0x0001, 0x8000], np.uint16),
    4: np.array([0x7F800001, 0xFFC12345, 0x7F812345, 0x7F800000, 0x00000001, 0x80000000], np.uint32),
}


def layout_of(dtype: Dtype) -> ExtentLayout:
    tokens = PAGE_TOKENS * PAGES_PER_BLOCK
    return ExtentLayout(tokens, (5, 5 + N_LAYERS), (0, N_HEADS), DIM, DIM, dtype)


def _random(shape: Sequence[int], dtype: Dtype, seed: int) -> torch.Tensor:
    """Random bits, with every odd one among them."""
    size = dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 256, (*shape[:-1], shape[-1] * size), np.uint8)
    values = raw.reshape(-1).view(f"u{size}")
    odd = ODD_BITS[size]
    values[::7][: len(odd) * 20] = np.resize(odd, len(values[::7][: len(odd) * 20]))
    if dtype is Dtype.BFLOAT16:
        values[1::7][:3] = [0x7F81, 0xFFC5, 0x7F80]
    return torch.from_numpy(raw).view(DTYPES_BY_CODE[dtype] if dtype is not Dtype.BYTES else torch.uint8)


def separate(dtype: Dtype, seed: int) -> list[torch.Tensor]:
    """A storage per layer."""
    return [_random((N_PAGES, N_HEADS, PAGE_TOKENS, 2 * DIM), dtype, seed + i) for i in range(N_LAYERS)]


def stacked(dtype: Dtype, seed: int) -> list[torch.Tensor]:
    """One storage, layer by layer."""
    return list(_random((N_LAYERS, N_PAGES, N_HEADS, PAGE_TOKENS, 2 * DIM), dtype, seed))


def page_major(dtype: Dtype, seed: int) -> list[torch.Tensor]:
    """One storage, all layers of a page together."""
    return list(_random((N_PAGES, N_LAYERS, N_HEADS, PAGE_TOKENS, 2 * DIM), dtype, seed).unbind(1))


def token_major(dtype: Dtype, seed: int) -> list[torch.Tensor]:
    """NHD in memory, seen as HND: strides that are not sorted."""
    return [
        _random((N_PAGES, PAGE_TOKENS, N_HEADS, 2 * DIM), dtype, seed + i).permute(0, 2, 1, 3) for i in range(N_LAYERS)
    ]


def token_major_stacked(dtype: Dtype, seed: int) -> list[torch.Tensor]:
    """NHD, one storage."""
    return list(_random((N_LAYERS, N_PAGES, PAGE_TOKENS, N_HEADS, 2 * DIM), dtype, seed).permute(0, 1, 3, 2, 4))


def backwards(dtype: Dtype, seed: int) -> list[torch.Tensor]:
    """One storage, the last layer first."""
    return stacked(dtype, seed)[::-1]


def uneven(dtype: Dtype, seed: int) -> list[torch.Tensor]:
    """One storage, layers at no regular distance."""
    whole = _random((N_LAYERS + 2, N_PAGES, N_HEADS, PAGE_TOKENS, 2 * DIM), dtype, seed)
    return [whole[0], whole[1], whole[4]]


def padded(dtype: Dtype, seed: int) -> list[torch.Tensor]:
    """Rows longer than what is used of them."""
    return list(_random((N_LAYERS, N_PAGES, N_HEADS, PAGE_TOKENS, 3 * DIM), dtype, seed)[..., : 2 * DIM])


Arrangement = Callable[[Dtype, int], list[torch.Tensor]]
ARRANGEMENTS = [separate, stacked, page_major, token_major, token_major_stacked, backwards, uneven, padded]


def bits(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor, last axis in bytes."""
    return tensor.contiguous().view(torch.uint8).numpy()


def canonical(tensors: Sequence[torch.Tensor], pages: Sequence[int]) -> np.ndarray:
    """[layer][head][k, v][token][bytes of dim], straight from docs/format.md."""
    layers = []
    for tensor in tensors:
        raw = bits(tensor)  # (pages, heads, tokens, K|V)
        dim = raw.shape[-1] // 2
        heads = [
            [np.concatenate([raw[page, head, :, part * dim : (part + 1) * dim] for page in pages]) for part in (0, 1)]
            for head in range(raw.shape[1])
        ]
        layers.append(heads)
    return np.array(layers)


def payload(extent: memoryview, layout: ExtentLayout) -> np.ndarray:
    """The runs of an extent in the same shape, cut out by the byte ranges of docs/format.md."""
    layers = []
    for layer in range(layout.n_layers):
        start = layout.header_bytes + layer * layout.segment_bytes
        runs = np.frombuffer(extent[start : start + layout.n_heads * layout.run_bytes], np.uint8)
        layers.append(runs.reshape(layout.n_heads, 2, layout.block_tokens, -1))
    return np.array(layers)
