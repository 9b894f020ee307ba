"""The geometry of a pool of blocks in memory that somebody computes in: plain numbers, which serialise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import msgspec

from tenuto.errors import ConfigError
from tenuto.memory.layout import Dtype, ExtentLayout, align_up

KINDS = ("contiguous", "per layer")
DTYPES = {dtype.name.lower(): dtype for dtype in Dtype}
"""By the names that a `Layout` takes: float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`n_blocks` blocks of `n_layers` layers of `outer_dim` planes, each ``(page_tokens, inner_dim)`` of `dtype`.

    A block holds the keys and values of `page_tokens` tokens; `outer_dim` is 2 (K and V) or 1 (one latent), and
    `inner_dim` counts the elements of one token in a plane: heads times the size of one. `dtype` is "float32",
    "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2" or "bytes", and `kind` how blocks lie: "contiguous" is
    ``[block][layer][outer][token][inner]``, with blocks `block_stride` apart; "per layer" is
    ``[layer][block][outer][token][inner]``, the layers in one buffer or in one each. Strides and offsets are bytes.
    Raises `ConfigError`, one line, for what is no layout.
    """

    kind: str
    n_blocks: int
    n_layers: int
    outer_dim: int
    page_tokens: int
    inner_dim: int
    dtype: str
    alignment: int = 64
    """Bytes: where blocks begin, a power of two and at least an element."""

    def __post_init__(self) -> None:
        for field in ("n_blocks", "n_layers", "outer_dim", "page_tokens", "inner_dim", "alignment"):
            value: Any = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 40:
                raise ConfigError(f"layout.{field}: {value!r} is no number of at least 1; give one")
        for field, choices in (("kind", KINDS), ("dtype", tuple(DTYPES)), ("outer_dim", (1, 2))):
            value = getattr(self, field)
            if value not in choices:
                raise ConfigError(f"layout.{field}: {value!r} is not known; give {' or '.join(map(repr, choices))}")
        if self.n_layers > 0xFFFF:
            raise ConfigError(f"layout.n_layers: {self.n_layers} are too many; give at most 65535")
        if self.alignment & (self.alignment - 1) or self.alignment < self.itemsize:
            raise ConfigError(
                f"layout.alignment: {self.alignment} is no power of two of at least {self.itemsize} bytes, one element"
            )

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].itemsize

    @property
    def plane_bytes(self) -> int:
        """Bytes of one layer's K, or V, of a block: what `view` gives."""
        return self.page_tokens * self.inner_dim * self.itemsize

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of a block: its planes are adjacent."""
        return self.outer_dim * self.plane_bytes

    @property
    def layer_stride(self) -> int:
        """Bytes from one layer of a block to the next."""
        return self.layer_bytes if self.kind == "contiguous" else self.n_blocks * self.block_stride

    @property
    def block_stride(self) -> int:
        """Bytes from one block to the next, a multiple of `alignment`.

        They are those of all its layers in "contiguous", of one in "per layer", rounded up.
        """
        n_layers = self.n_layers if self.kind == "contiguous" else 1
        return align_up(n_layers * self.layer_bytes, self.alignment)

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks, from an aligned address on."""
        return self.n_blocks * self.block_stride * (1 if self.kind == "contiguous" else self.n_layers)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of a buffer that has room for all blocks whatever its address: `size_bytes` and an `alignment`."""
        return self.size_bytes + self.alignment

    @property
    def region_bytes(self) -> int:
        """The same for each buffer when every layer of "per layer" has one."""
        return self.n_blocks * self.block_stride + self.alignment

    def offset(self, block: int, layer: int, outer: int) -> int:
        """Where a plane begins, in bytes. Raises `IndexError` outside of the layout; nothing counts from the end."""
        for name, index, n in (
            ("block", block, self.n_blocks),
            ("layer", layer, self.n_layers),
            ("outer", outer, self.outer_dim),
        ):
            if not 0 <= index < n:
                raise IndexError(f"{name} {index} of {n}")
        return block * self.block_stride + layer * self.layer_stride + outer * self.plane_bytes

    def extent(self) -> ExtentLayout:
        """What is stored of a block below the device: docs/format.md, as one head with all of `inner_dim`."""
        v_dim = self.inner_dim if self.outer_dim == 2 else 0
        return ExtentLayout(self.page_tokens, (0, self.n_layers), (0, 1), self.inner_dim, v_dim, DTYPES[self.dtype])

    def to_dict(self) -> dict[str, str | int]:
        """Its fields, as `from_dict` takes them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Layout:
        """A layout from its fields, each of which is checked. Raises `ConfigError` naming the one that is wrong."""
        known = {field.name: field.default for field in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(f"layout.{name}: unknown field; known: {', '.join(known)}")
        if missing := [name for name in known if name not in given and name != "alignment"]:
            raise ConfigError(f"layout.{missing[0]}: missing; give all of {', '.join(known)}")
        return cls(**given)

    def to_json(self) -> str:
        """One JSON object."""
        return msgspec.json.encode(self.to_dict()).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Layout:
        """A layout from `to_json`'s text. Raises `ConfigError` for what is none."""
        try:
            given = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:  # also of another type than an object
            raise ConfigError(f"layout: not a JSON object ({error})") from None
        return cls.from_dict(given)
