"""The KV memories that `tenuto bench device` moves: real models' shapes in the formats engines register."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tenuto.memory.formats import DTYPES, KNOWN_FORMATS, KvFormat
from tenuto.memory.layout import ExtentLayout


@dataclass(frozen=True, slots=True)
class Case:
    """`format_name` is the field's; `memory` gives the axes as they lie in memory, where not in logical order."""

    name: str
    format_name: str
    n_layers: int = 32
    n_heads: int = 8
    page_tokens: int = 16
    dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    is_mla: bool = False
    memory: str = ""

    @property
    def format(self) -> KvFormat:
        """Of that name."""
        return KNOWN_FORMATS[self.format_name]

    @property
    def page_axis(self) -> int:
        """Where the pages are in a tensor's shape."""
        return self.format.axes.index("P")

    def layout(self, block_tokens: int) -> ExtentLayout:
        """An extent of the whole model."""
        v_dim = 0 if self.is_mla else self.dim
        return ExtentLayout(block_tokens, (0, self.n_layers), (0, self.n_heads), self.dim, v_dim, DTYPES[self.dtype])


CASES = (
    Case("32k", "NL_X_TWO_NB_BS_NH_HS"),
    Case("packed", "NL_X_NB_NH_BS_CS", memory="PTHC"),  # what vLLM 0.26 and newer register: the NHD view
    Case("hnd", "NL_X_NB_NH_BS_CS"),
    Case("4k", "NL_X_TWO_NB_BS_NH_HS", n_layers=80, n_heads=1),
    Case("planes_inside", "NL_X_NB_TWO_BS_NH_HS"),
    Case("cross_layer", "BLHNC"),
    Case("mla", "NL_X_NB_BS_HS", n_layers=61, n_heads=1, page_tokens=64, dim=576, is_mla=True),
    Case("fp8", "NL_X_NB_NH_BS_CS", dtype=torch.float8_e4m3fn, memory="PTHC"),
    Case(
        "fp8_ds_mla", "NL_X_NB_BS_HS", n_layers=61, n_heads=1, page_tokens=64, dim=656, dtype=torch.uint8, is_mla=True
    ),
    Case("batch", "NB_NL_TWO_NH_BS_HS", n_layers=80, n_heads=1, page_tokens=256),  # pages are extents: no ring
)


def make_tensors(case: Case, n_pages: int, device: torch.device) -> list[torch.Tensor]:
    """Random bytes in the case's format: a tensor for each layer, or one for all."""
    form = case.format
    sizes = {
        "L": case.n_layers, "K": 2, "P": n_pages, "H": case.n_heads, "T": case.page_tokens, "D": case.dim,
        "C": 2 * case.dim,
    }  # fmt: skip
    order = case.memory or form.axes
    n_tensors = 1 if "L" in form.axes else case.n_layers
    tensors: list[torch.Tensor] = []
    generator = torch.Generator(device).manual_seed(7)
    for _ in range(n_tensors):
        shape = [sizes[axis] for axis in order]
        shape[-1] *= case.dtype.itemsize
        raw = torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=generator).view(case.dtype)
        tensors.append(raw.permute([order.index(axis) for axis in form.axes]))
    return tensors
