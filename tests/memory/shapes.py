"""Shapes of KV caches, and the arrangements engines keep them in, made from one array by numpy and torch alone."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from tenuto.memory.formats import DTYPES, MLA, PACKED_HND, PACKED_NHD, KvFormat, Nesting, named_format
from tenuto.memory.layout import Dtype, ExtentLayout

DTYPES_BY_CODE = {code: dtype for dtype, code in DTYPES.items()} | {Dtype.BYTES: torch.uint8}


@dataclass(frozen=True)
class Shape:
    """One rank's KV of a model; `page_tokens` are the manager's, `kernel_page_tokens` what its tensors have."""

    n_layers: int
    n_heads: int
    k_dim: int
    v_dim: int
    page_tokens: int
    block_tokens: int
    dtype: Dtype = Dtype.BFLOAT16
    kernel_page_tokens: int = 0

    @property
    def layout(self) -> ExtentLayout:
        layers, heads = (3, 3 + self.n_layers), (0, self.n_heads)
        return ExtentLayout(self.block_tokens, layers, heads, self.k_dim, self.v_dim, self.dtype)

    @property
    def page_rows(self) -> int:
        return self.kernel_page_tokens or self.page_tokens

    @property
    def n_planes(self) -> int:
        return 2 if self.v_dim else 1


TINY = Shape(n_layers=5, n_heads=3, k_dim=8, v_dim=8, page_tokens=4, block_tokens=12)
TINY_MLA = Shape(n_layers=3, n_heads=1, k_dim=72, v_dim=0, page_tokens=4, block_tokens=12)
SHAPES = {
    "tiny": TINY,
    "tiny-odd": replace(TINY, k_dim=3, v_dim=3, n_layers=2),
    "tiny-one-token": replace(TINY, page_tokens=1, block_tokens=3),
    "tiny-small-kernel-pages": replace(TINY, kernel_page_tokens=2),
    "tiny-mla": TINY_MLA,
    "tiny-fp8-ds-mla": replace(TINY_MLA, k_dim=656, dtype=Dtype.BYTES),
}


@dataclass(frozen=True)
class Arrangement:
    """A format in memory. `memory` is the order of L P H K T D there; L or K left out: each has storages of its own."""

    kv_format: KvFormat
    memory: str
    padding_bytes: int = 0
    """Behind each page; P is then outermost."""

    def tensors(self, truth: np.ndarray, dtype: Dtype, device: str = "cpu"):
        """The engine's tensors with these bytes, uint8 ``(layers, pages, heads, planes, tokens, row_bytes)``."""
        nesting = self.kv_format.nesting
        layers = range(truth.shape[0])
        if nesting is Nesting.WHOLE:
            return self._logical(self._storage(truth, self.memory, dtype, device), self.memory)
        if "L" in self.memory:
            whole = self._storage(truth, self.memory, dtype, device)
            inner = self.memory.replace("L", "")
            return [self._logical(part, inner) for part in whole.unbind(self.memory.index("L"))]
        if nesting is Nesting.PER_LAYER:
            return [self._logical(self._storage(truth[i], self.memory, dtype, device), self.memory) for i in layers]
        pairs = [
            [self._logical(self._storage(truth[i, :, :, k], self.memory, dtype, device), self.memory) for k in (0, 1)]
            for i in layers
        ]
        return pairs if nesting is Nesting.LAYER_PAIRS else [list(plane) for plane in zip(*pairs, strict=True)]

    def _storage(self, truth: np.ndarray, memory: str, dtype: Dtype, device: str) -> torch.Tensor:
        """These bytes in this order, of the dtype; `truth` has the axes of "LPHKTD" that `memory` names."""
        axes = [axis for axis in "LPHKTD" if axis in memory]
        dense = np.ascontiguousarray(truth.transpose([axes.index(axis) for axis in memory]))
        tensor = torch.from_numpy(dense)
        if self.padding_bytes:
            n_pages, page_bytes = dense.shape[0], dense[0].size
            padded = torch.zeros((n_pages, page_bytes + self.padding_bytes), dtype=torch.uint8)
            padded[:, :page_bytes] = tensor.reshape(n_pages, -1)
            strides = (padded.stride(0), *tensor.stride()[1:])
            return padded.view(DTYPES_BY_CODE[dtype]).to(device).view(torch.uint8).as_strided(
                dense.shape, strides
            ).view(DTYPES_BY_CODE[dtype])  # fmt: skip
        return tensor.view(DTYPES_BY_CODE[dtype]).to(device)

    def _logical(self, tensor: torch.Tensor, memory: str) -> torch.Tensor:
        axes = self.kv_format.axes
        if "C" in axes:
            tensor, memory = tensor.flatten(-2), memory.removesuffix("KD") + "C"
        if "S" in axes:
            at = memory.index("PT")
            tensor, memory = tensor.flatten(at, at + 1), memory.replace("PT", "S")
        for axis in set(memory) - set(axes):
            tensor, memory = tensor.squeeze(memory.index(axis)), memory.replace(axis, "")
        plain = axes.replace("O", "")
        tensor = tensor.permute([memory.index(axis) for axis in plain])
        return tensor.unsqueeze(axes.index("O")) if "O" in axes else tensor


def _field(name: str, memory: str) -> Arrangement:
    return Arrangement(named_format(name), memory)


ARRANGEMENTS = {
    "vllm-hnd": Arrangement(PACKED_HND, "PHTKD"),
    "vllm-nhd-view": Arrangement(PACKED_HND, "PTHKD"),
    "vllm-hnd-one-storage": Arrangement(PACKED_HND, "LPHTKD"),
    "vllm-nhd-one-storage": Arrangement(PACKED_HND, "LPTHKD"),
    "vllm-LHBNC": Arrangement(PACKED_HND, "LHPTKD"),
    "vllm-BLHNC": Arrangement(PACKED_HND, "PLHTKD"),
    "vllm-BLNHC": Arrangement(PACKED_HND, "PLTHKD"),
    "vllm-BHLNC": Arrangement(PACKED_HND, "PHLTKD"),
    "padded-pages": Arrangement(PACKED_HND, "PHTKD", padding_bytes=48),
    "BLHNC": _field("BLHNC", "PLHTKD"),
    "BLNHC": _field("BLNHC", "PLTHKD"),
    "BHLNC": _field("BHLNC", "PHLTKD"),
    "NB_NL_TWO_BS_NH_HS": _field("NB_NL_TWO_BS_NH_HS", "PLKTHD"),
    "NL_X_TWO_NB_BS_NH_HS": _field("NL_X_TWO_NB_BS_NH_HS", "KPTHD"),
    "NL_X_NB_TWO_BS_NH_HS": _field("NL_X_NB_TWO_BS_NH_HS", "PKTHD"),
    "TWO_X_NL_X_NBBS_NH_HS": _field("TWO_X_NL_X_NBBS_NH_HS", "PTHD"),
    "NL_X_TWO_NB_NH_BS_HS": _field("NL_X_TWO_NB_NH_BS_HS", "KPHTD"),
    "NL_X_NB_TWO_NH_BS_HS": _field("NL_X_NB_TWO_NH_BS_HS", "PKHTD"),
    "NB_NL_TWO_NH_BS_HS": _field("NB_NL_TWO_NH_BS_HS", "PLKHTD"),
    "TWO_X_NL_X_NB_BS_NH_HS": _field("TWO_X_NL_X_NB_BS_NH_HS", "PTHD"),
    "NL_X_NB_NH_BS_TWO_HS": _field("NL_X_NB_NH_BS_TWO_HS", "PHTKD"),
    "NL_X_NB_BS_NH_TWO_HS": _field("NL_X_NB_BS_NH_TWO_HS", "PTHKD"),
    "NL_X_NB_NH_BS_CS": Arrangement(PACKED_HND, "PHTKD"),
    "NL_X_NB_BS_NH_CS": Arrangement(PACKED_NHD, "PTHKD"),
    "NL_X_TWO_NB_NH_ONE_BS_HS": _field("NL_X_TWO_NB_NH_ONE_BS_HS", "KPHTD"),
    "NL_X_TWO_X_NB_BS_NH_HS": _field("NL_X_TWO_X_NB_BS_NH_HS", "PTHD"),
}
MLA_ARRANGEMENTS = {
    "NL_X_NB_BS_HS": Arrangement(MLA, "PHTKD"),
    "NL_X_NBBS_ONE_HS": _field("NL_X_NBBS_ONE_HS", "PTHKD"),
    "vllm-mla": Arrangement(PACKED_HND, "PHTKD"),
    "vllm-mla-block-major": Arrangement(PACKED_HND, "PLHTKD"),
    "mla-padded-pages": Arrangement(MLA, "PHTKD", padding_bytes=64),
}


def cases() -> list[tuple[str, str, Dtype]]:
    """(shape, arrangement, dtype): all arrangements, and all dtypes and odd shapes in the commonest of them."""
    found = [("tiny", name, Dtype.BFLOAT16) for name in ARRANGEMENTS]
    found += [("tiny", name, dtype) for name in ("vllm-hnd", "vllm-nhd-view") for dtype in Dtype]
    found += [("tiny", "NL_X_TWO_NB_BS_NH_HS", dtype) for dtype in (Dtype.FLOAT32, Dtype.BYTES)]
    for shape in ("tiny-odd", "tiny-one-token", "tiny-small-kernel-pages"):
        found += [(shape, name, Dtype.FLOAT16) for name in ("vllm-hnd", "vllm-nhd-view", "NL_X_TWO_NB_BS_NH_HS")]
    found += [("tiny-odd", "vllm-hnd", dtype) for dtype in (Dtype.FLOAT8_E4M3FN, Dtype.FLOAT32)]
    found += [("tiny-mla", name, Dtype.BFLOAT16) for name in MLA_ARRANGEMENTS]
    found += [("tiny-fp8-ds-mla", name, Dtype.BYTES) for name in MLA_ARRANGEMENTS]
    return list(dict.fromkeys(found))


def all_cases() -> list[tuple[str, str, Dtype]]:
    """Every tiny shape in every arrangement with every dtype; hundreds."""
    return [
        (shape, name, dtype)
        for shape, tiny in SHAPES.items()
        for name in (ARRANGEMENTS if tiny.v_dim else MLA_ARRANGEMENTS)
        for dtype in ([Dtype.BYTES] if tiny.dtype is Dtype.BYTES else Dtype)
        if not (shape == "tiny-small-kernel-pages" and "S" in named_axes(name))
    ]


def named_axes(name: str) -> str:
    """Logical axes of an arrangement."""
    return (ARRANGEMENTS | MLA_ARRANGEMENTS)[name].kv_format.axes


def random_truth(shape: Shape, n_pages: int, seed: int = 0) -> np.ndarray:
    """Random ``(layers, kernel pages, heads, planes, tokens, row_bytes)``; `n_pages` are the manager's."""
    ratio = shape.page_tokens // shape.page_rows
    row_bytes = shape.k_dim * shape.dtype.itemsize
    size = (shape.n_layers, n_pages * ratio, shape.n_heads, shape.n_planes, shape.page_rows, row_bytes)
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def payload_of(truth: np.ndarray, pages: list[int], segment_bytes: int, fill: int) -> np.ndarray:
    """The payload of the block in these kernel pages, by docs/format.md, padding full of `fill`: uint8 ``(bytes,)``."""
    runs = truth[:, pages].transpose(0, 2, 3, 1, 4, 5).reshape(truth.shape[0], -1)
    rows = np.full((truth.shape[0], segment_bytes), fill, np.uint8)
    rows[:, : runs.shape[1]] = runs
    return rows.reshape(-1)
