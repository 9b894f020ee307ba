"""KV memories as engines keep them: one table, for the tests of what moves them and for `tenuto bench device`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from tenuto.memory.formats import DTYPES, MLA, PACKED_HND, PACKED_NHD, KvFormat, KvTensors, Nesting, named_format
from tenuto.memory.layout import Dtype, ExtentLayout, choose_block_tokens

Bytes = npt.NDArray[np.uint8]
DTYPES_BY_CODE = {code: dtype for dtype, code in DTYPES.items()} | {Dtype.BYTES: torch.uint8}
"""Torch's, for the types of extents."""


@dataclass(frozen=True, slots=True)
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
        """Its extents; the first layer is not 0."""
        layers, heads = (3, 3 + self.n_layers), (0, self.n_heads)
        return ExtentLayout(self.block_tokens, layers, heads, self.k_dim, self.v_dim, self.dtype)

    @property
    def page_rows(self) -> int:
        """Tokens of a kernel page."""
        return self.kernel_page_tokens or self.page_tokens

    @property
    def n_planes(self) -> int:
        """K and V, or one latent."""
        return 2 if self.v_dim else 1

    def truth_size(self, n_pages: int) -> tuple[int, ...]:
        """``(layers, kernel pages, heads, planes, tokens, row_bytes)`` of so many of the manager's pages."""
        n_kernel_pages = n_pages * (self.page_tokens // self.page_rows)
        row_bytes = self.k_dim * self.dtype.itemsize
        return self.n_layers, n_kernel_pages, self.n_heads, self.n_planes, self.page_rows, row_bytes


def _served(
    n_layers: int, n_heads: int, page_tokens: int = 16, dim: int = 128, dtype: Dtype = Dtype.BFLOAT16, *,
    is_mla: bool = False,
) -> Shape:  # fmt: skip
    """A real model's, with the block that the auto rule chooses."""
    v_dim = 0 if is_mla else dim
    block_tokens = choose_block_tokens(0, page_tokens, n_heads * (dim + v_dim) * dtype.itemsize)
    return Shape(n_layers, n_heads, dim, v_dim, page_tokens, block_tokens, dtype)


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
"""For tests."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A format in memory. `memory` is the order of L P H K T D there; L or K left out: each has storages of its own."""

    kv_format: KvFormat
    memory: str
    padding_bytes: int = 0
    """Behind each page; P is then outermost."""

    def tensors(self, truth: Bytes, dtype: Dtype, device: str = "cpu") -> KvTensors:
        """The engine's tensors with these bytes, uint8 ``(layers, pages, heads, planes, tokens, row_bytes)``."""

        def storage(picked: dict[str, int]) -> torch.Tensor:
            part = truth[tuple(picked.get(axis, slice(None)) for axis in "LPHKTD")]
            axes = [axis for axis in "LPHKTD" if axis not in picked]
            dense = np.ascontiguousarray(part.transpose([axes.index(axis) for axis in self._memory_without(picked)]))
            return self._padded(torch.as_tensor(dense), device)

        return self._nested(storage, truth.shape[0], dtype)

    def random_tensors(self, shape: Shape, n_pages: int, device: str, seed: int = 0) -> KvTensors:
        """The engine's tensors with random bytes, made on the device; `n_pages` are the manager's."""
        generator = torch.Generator(device).manual_seed(seed)
        sizes = dict(zip("LPHKTD", shape.truth_size(n_pages), strict=True))

        def storage(picked: dict[str, int]) -> torch.Tensor:
            size = [sizes[axis] for axis in self._memory_without(picked)]
            return torch.randint(0, 256, size, dtype=torch.uint8, device=device, generator=generator)

        return self._nested(storage, shape.n_layers, shape.dtype)

    def _nested(self, storage: Callable[[dict[str, int]], torch.Tensor], n_layers: int, dtype: Dtype) -> KvTensors:
        """`storage` gives the bytes of one storage, of the layer or plane that is picked, else of all."""
        nesting = self.kv_format.nesting

        def one(**picked: int) -> torch.Tensor:
            return self._logical(storage(picked).view(DTYPES_BY_CODE[dtype]), self._memory_without(picked))

        if nesting is Nesting.WHOLE:
            return one()
        if "L" in self.memory:
            whole = storage({}).view(DTYPES_BY_CODE[dtype])
            return [self._logical(part, self.memory.replace("L", "")) for part in whole.unbind(self.memory.index("L"))]
        if nesting is Nesting.PER_LAYER:
            return [one(L=layer) for layer in range(n_layers)]
        pairs = [[one(L=layer, K=plane) for plane in (0, 1)] for layer in range(n_layers)]
        return pairs if nesting is Nesting.LAYER_PAIRS else [list(plane) for plane in zip(*pairs, strict=True)]

    def _memory_without(self, picked: dict[str, int]) -> str:
        return "".join(axis for axis in self.memory if axis not in picked)

    def _padded(self, dense: torch.Tensor, device: str) -> torch.Tensor:
        if not self.padding_bytes:
            return dense.to(device)
        n_pages, page_bytes = dense.shape[0], dense[0].numel()
        padded = torch.zeros((n_pages, page_bytes + self.padding_bytes), dtype=torch.uint8)
        padded[:, :page_bytes] = dense.reshape(n_pages, -1)
        return padded.to(device).as_strided(dense.shape, (padded.stride(0), *dense.stride()[1:]))

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
"""What tests take, and `BENCHED` some of it: vLLM's own, and the field's by their names."""
MLA_ARRANGEMENTS = {
    "NL_X_NB_BS_HS": Arrangement(MLA, "PHTKD"),
    "NL_X_NBBS_ONE_HS": _field("NL_X_NBBS_ONE_HS", "PTHKD"),
    "vllm-mla": Arrangement(PACKED_HND, "PHTKD"),
    "vllm-mla-block-major": Arrangement(PACKED_HND, "PLHTKD"),
    "mla-padded-pages": Arrangement(MLA, "PHTKD", padding_bytes=64),
}
"""The same for one latent."""

_LLAMA_8B = _served(n_layers=32, n_heads=8)
_DEEPSEEK = _served(n_layers=61, n_heads=1, page_tokens=64, dim=576, is_mla=True)
BENCHED: dict[str, tuple[Shape, Arrangement]] = {
    "32k": (_LLAMA_8B, ARRANGEMENTS["NL_X_TWO_NB_BS_NH_HS"]),
    "packed": (_LLAMA_8B, ARRANGEMENTS["vllm-nhd-view"]),  # what vLLM 0.26 and newer register
    "hnd": (_LLAMA_8B, ARRANGEMENTS["vllm-hnd"]),
    "4k": (_served(n_layers=80, n_heads=1), ARRANGEMENTS["NL_X_TWO_NB_BS_NH_HS"]),
    "planes_inside": (_LLAMA_8B, ARRANGEMENTS["NL_X_NB_TWO_BS_NH_HS"]),
    "cross_layer": (_LLAMA_8B, ARRANGEMENTS["BLHNC"]),
    "mla": (_DEEPSEEK, MLA_ARRANGEMENTS["NL_X_NB_BS_HS"]),
    "fp8": (_served(n_layers=32, n_heads=8, dtype=Dtype.FLOAT8_E4M3FN), ARRANGEMENTS["vllm-nhd-view"]),
    "fp8_ds_mla": (
        _served(n_layers=61, n_heads=1, page_tokens=64, dim=656, dtype=Dtype.BYTES, is_mla=True),
        MLA_ARRANGEMENTS["NL_X_NB_BS_HS"],
    ),
    # pages are extents: no ring
    "batch": (_served(n_layers=80, n_heads=1, page_tokens=256), ARRANGEMENTS["NB_NL_TWO_NH_BS_HS"]),
}
"""What `tenuto bench device` moves: real models' shapes in the formats engines register, by the figures' names."""


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


def random_truth(shape: Shape, n_pages: int, seed: int = 0) -> Bytes:
    """Random bytes of a `truth_size`."""
    return np.random.default_rng(seed).integers(0, 256, shape.truth_size(n_pages), np.uint8)


def payload_of(truth: Bytes, pages: list[int], segment_bytes: int, fill: int) -> Bytes:
    """The payload of the block in these kernel pages, by docs/format.md, padding full of `fill`: uint8 ``(bytes,)``."""
    runs = truth[:, pages].transpose(0, 2, 3, 1, 4, 5).reshape(truth.shape[0], -1)
    rows = np.full((truth.shape[0], segment_bytes), fill, np.uint8)
    rows[:, : runs.shape[1]] = runs
    return rows.reshape(-1)
