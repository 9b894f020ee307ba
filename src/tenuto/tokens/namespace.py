"""What makes keys and values interchangeable."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256

import msgspec

FORMAT_VERSION = 1
"""Of the stored bytes, see docs/format.md; a part of every namespace."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Everything that must be equal for one engine to use another's blocks.

    Layer and head ranges are not part of it, so any tensor- or pipeline-parallel size shares a namespace.
    """

    model: str
    """Name or path, for people only: not part of the identity."""
    config: str
    """Fingerprint of the model's configuration."""
    weights: str
    """Fingerprint of every weight file, or the revision they were fetched by, or the user's own name for them."""
    compute_dtype: str
    kv_dtype: str
    quantisation: str
    """Weight and KV quantisation schemes, with their scale values where they are layer scalars."""
    block_tokens: int
    n_layers: int
    n_kv_heads: int
    k_dim: int
    v_dim: int
    group: int = 0
    epoch: int = 0
    """0, or the random number drawn by the last reset in this process."""
    format_version: int = FORMAT_VERSION

    @property
    def digest(self) -> bytes:
        """16 bytes; the parent of every chain's first block."""
        return _digest(self)

    @property
    def folder(self) -> str:
        """The name of its folder on disk: 32 hex digits, the same in every epoch."""
        return replace(self, epoch=0).digest.hex()

    def describe(self) -> dict[str, str | int]:
        """The identity in words, as written to namespace.json."""
        return asdict(replace(self, epoch=0))

    def at_epoch(self, epoch: int) -> Namespace:
        """The namespace after a reset that drew `epoch`."""
        return replace(self, epoch=epoch)


@lru_cache(maxsize=16)  # asked for with each request
def _digest(namespace: Namespace) -> bytes:
    identity = {name: value for name, value in asdict(namespace).items() if name != "model"}
    return sha256(msgspec.json.encode(identity, order="sorted")).digest()[:16]
