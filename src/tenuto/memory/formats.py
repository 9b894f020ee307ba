"""The ways engines arrange paged KV memory: names of axes, and how they are told from shapes.

The names on the right of `ENGINE_FORMATS` are those of LMCache's `EngineKVFormat`, which other projects use too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, cast

import torch

from tenuto.errors import UnsupportedModelError
from tenuto.memory.layout import Dtype, ExtentLayout

DTYPES = {
    torch.float32: Dtype.FLOAT32,
    torch.float16: Dtype.FLOAT16,
    torch.bfloat16: Dtype.BFLOAT16,
    torch.float8_e4m3fn: Dtype.FLOAT8_E4M3FN,
    torch.float8_e5m2: Dtype.FLOAT8_E5M2,
    torch.uint8: Dtype.BYTES,
    torch.int8: Dtype.BYTES,
}

KvTensors: TypeAlias = "torch.Tensor | Sequence[torch.Tensor] | Sequence[Sequence[torch.Tensor]]"
LayerViews: TypeAlias = "list[list[torch.Tensor]]"
"""Per layer, one view of both planes or one of each: ``(planes, pages, heads, tokens, dim)``."""


class Nesting(Enum):
    """How the tensors are handed over."""

    PER_LAYER = "one tensor per layer"
    WHOLE = "one tensor for all layers"
    LAYER_PAIRS = "a (K, V) pair per layer"
    PLANE_LISTS = "a list of K tensors and a list of V tensors"


@dataclass(frozen=True, slots=True)
class KvFormat:
    """The logical axes of a KV tensor, outermost first, a letter each. Strides are the tensor's own.

    P pages, S pages × tokens in one, L layers, K planes (K and V; 2), H heads, T tokens of a page, D dim of one plane,
    C content: K's dims, then V's, O a single 1. Without H there is one head; without K and C one plane (MLA), or the
    planes are tensors of their own.
    """

    axes: str
    nesting: Nesting = Nesting.PER_LAYER

    def views(self, tensors: KvTensors, layout: ExtentLayout, page_tokens: int) -> LayerViews | None:
        """The tensors as `LayerViews`, or None where shapes say that this is another format.

        The engine's kernels may have smaller pages than its manager: T is then a whole part of `page_tokens`.
        """
        groups = _groups(tensors, self.nesting, layout)
        if groups is None:
            return None
        found = [[self._view(tensor, layout, page_tokens) for tensor in group] for group in groups]
        if any(view is None for group in found for view in group):
            return None
        views = cast("list[list[torch.Tensor]]", found)
        if self.nesting is Nesting.WHOLE:
            return [[layer] for layer in views[0][0].unbind(0)]
        return [[view[0] for view in group] for group in views]

    def _view(self, tensor: torch.Tensor, layout: ExtentLayout, page_tokens: int) -> torch.Tensor | None:
        """``(layers, planes, pages, heads, tokens, dim)``; layers is 1 in a tensor of one layer."""
        wanted = {
            "L": layout.n_layers, "K": 2, "H": layout.n_heads, "D": layout.k_dim, "O": 1,
            "C": layout.k_dim + layout.v_dim,
        }  # fmt: skip
        axes = self.axes
        if tensor.dim() != len(axes) or tensor.numel() == 0:
            return None
        for axis, size in zip(axes, tensor.shape, strict=True):
            is_other = size != wanted.get(axis, size)
            if is_other or (axis == "T" and page_tokens % size) or (axis == "S" and size % page_tokens):
                return None
        is_pair = self.nesting in (Nesting.LAYER_PAIRS, Nesting.PLANE_LISTS)
        has_planes = is_pair or "K" in axes or ("C" in axes and layout.n_planes == 2)
        if has_planes != (layout.n_planes == 2) or ("H" not in axes and layout.n_heads != 1):
            return None
        view = tensor
        for axis, inner, sizes in (
            ("C", "KD", (layout.n_planes, layout.k_dim)),
            ("S", "PT", (-1, page_tokens)),
            ("O", "", ()),
        ):
            at = axes.find(axis)
            if at >= 0:
                view = view.unflatten(at, sizes) if inner else view.squeeze(at)
                axes = axes.replace(axis, inner)
        for axis in "LKPHTD":
            if axis not in axes:
                view, axes = view.unsqueeze(0), axis + axes
        return view.permute([axes.index(axis) for axis in "LKPHTD"])


def _groups(tensors: KvTensors, nesting: Nesting, layout: ExtentLayout) -> list[list[torch.Tensor]] | None:
    """The tensors of each layer, or one group of one for the whole; None where they are nested otherwise."""
    if isinstance(tensors, torch.Tensor):
        return [[tensors]] if nesting is Nesting.WHOLE else None
    if all(isinstance(item, torch.Tensor) for item in tensors):
        flat = [item for item in tensors if isinstance(item, torch.Tensor)]
        if nesting is Nesting.PER_LAYER and len(flat) == layout.n_layers:
            return [[tensor] for tensor in flat]
        return [flat] if nesting is Nesting.WHOLE and len(flat) == 1 else None
    nested = [list(item) for item in tensors if not isinstance(item, torch.Tensor)]
    if nesting is Nesting.PLANE_LISTS and len(nested) == 2 and len(nested[0]) == len(nested[1]) == layout.n_layers:
        return [list(pair) for pair in zip(*nested, strict=True)]
    if nesting is Nesting.LAYER_PAIRS and len(nested) == layout.n_layers and all(len(pair) == 2 for pair in nested):
        return nested
    return None


PACKED_HND = KvFormat("PHTC")
"""What vLLM registers since 0.26, whatever lies in memory: NHD there is a view with other strides."""
PACKED_NHD = KvFormat("PTHC")
MLA = KvFormat("PTD")

ENGINE_FORMATS: dict[str, KvFormat | str] = {
    "NB_NL_TWO_BS_NH_HS": KvFormat("PLKTHD", Nesting.WHOLE),
    "NL_X_TWO_NB_BS_NH_HS": KvFormat("KPTHD"),
    "NL_X_NB_TWO_BS_NH_HS": KvFormat("PKTHD"),
    "NL_X_NB_BS_HS": MLA,
    "TWO_X_NL_X_NBBS_NH_HS": KvFormat("SHD", Nesting.PLANE_LISTS),
    "NL_X_NBBS_ONE_HS": KvFormat("SOD"),
    "NL_X_TWO_NB_NH_BS_HS": KvFormat("KPHTD"),
    "NL_X_NB_TWO_NH_BS_HS": KvFormat("PKHTD"),
    "NB_NL_TWO_NH_BS_HS": KvFormat("PLKHTD", Nesting.WHOLE),
    "TWO_X_NL_X_NB_BS_NH_HS": KvFormat("PTHD", Nesting.PLANE_LISTS),
    "NL_X_NB_NH_BS_TWO_HS": KvFormat("PHTKD"),
    "NL_X_NB_BS_NH_TWO_HS": KvFormat("PTHKD"),
    "NL_X_NB_NH_BS_CS": PACKED_HND,
    "NL_X_NB_BS_NH_CS": PACKED_NHD,
    "NL_X_NB_BSV_BSS": "its pages hold the values of all tokens, then the scales of all: no row of bytes is one token",
    "NL_X_TWO_NB_NH_ONE_BS_HS": KvFormat("KPHOTD"),
    "NL_X_TWO_X_NB_BS_NH_HS": KvFormat("PTHD", Nesting.LAYER_PAIRS),
}
"""The field's names → ours, or why there is none."""

BLOCK_MAJOR_FORMATS: dict[str, KvFormat] = {
    "BLHNC": KvFormat("PLHTC", Nesting.WHOLE),
    "BLNHC": KvFormat("PLTHC", Nesting.WHOLE),
    "BHLNC": KvFormat("PHLTC", Nesting.WHOLE),
}
"""vLLM's names for all layers of a page together, given as one tensor. Given per layer, they are `PACKED_HND`."""

KNOWN_FORMATS: dict[str, KvFormat] = {
    **{name: known for name, known in ENGINE_FORMATS.items() if isinstance(known, KvFormat)},
    **BLOCK_MAJOR_FORMATS,
}


def named_format(name: str) -> KvFormat:
    """The format of that name. Raises `UnsupportedModelError` with the reason where it has none."""
    known = BLOCK_MAJOR_FORMATS.get(name) or ENGINE_FORMATS.get(name)
    if isinstance(known, KvFormat):
        return known
    raise UnsupportedModelError(f"KV format {name} is not supported: {known or 'the name is not known'}")


def detect_format(tensors: KvTensors, layout: ExtentLayout, page_tokens: int) -> tuple[KvFormat, LayerViews]:
    """The one format that fits the shapes, and the tensors seen by it.

    Formats whose pages are the manager's own go before those that cut them into smaller ones. Raises
    `UnsupportedModelError` where none fits, or several that would move different bytes.
    """
    fitting: dict[str, tuple[KvFormat, LayerViews]] = {}
    for name, known in KNOWN_FORMATS.items():
        views = known.views(tensors, layout, page_tokens)
        if views is not None:
            fitting[name] = known, views
    whole = {name: found for name, found in fitting.items() if found[1][0][0].shape[3] == page_tokens}
    candidates = whole or fitting
    shape = shape_text(tensors)
    if not candidates:
        raise UnsupportedModelError(
            f"KV cache of {shape} is no known arrangement of {layout.n_layers} layers, {layout.n_heads} heads, "
            f"{page_tokens} tokens a page, K dim {layout.k_dim} and V dim {layout.v_dim}: this attention backend is "
            "not supported yet"
        )
    if len({_identity(views) for _, views in candidates.values()}) > 1:
        raise UnsupportedModelError(
            f"KV cache of {shape} is ambiguous, it may be {' or '.join(candidates)}: declare its format"
        )
    return next(iter(candidates.values()))


def _identity(views: LayerViews) -> tuple[object, ...]:
    """What two views of the same bytes in the same order have in common."""
    return tuple(
        (view.data_ptr(), tuple(view.shape), tuple(s for s, n in zip(view.stride(), view.shape, strict=True) if n > 1))
        for layer in views
        for group in layer
        for view in group.unbind(0)
    )


def shape_text(tensors: KvTensors) -> str:
    """For messages: the first tensor's shape, and how many there are."""
    if isinstance(tensors, torch.Tensor):
        return f"shape {tuple(tensors.shape)}"
    flat = [t for item in tensors for t in ([item] if isinstance(item, torch.Tensor) else item)]
    shapes = list(dict.fromkeys(str(tuple(tensor.shape)) for tensor in flat))
    return f"{len(flat)} tensors of shape {' and '.join(shapes[:2])}" if flat else "0 tensors"
