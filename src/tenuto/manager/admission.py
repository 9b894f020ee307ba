"""Which blocks are worth a write to disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tenuto.plugins import make_named
from tenuto.pools.policies.sketch import CountSketch
from tenuto.tokens import BlockKey

Mask = npt.NDArray[np.bool_]


class Admission(Protocol):
    """Asked for blocks in host memory that are not on disk. What is refused is asked for when it is next used."""

    def admit(self, keys: Sequence[BlockKey], *, is_free: bool) -> Mask:
        """Which of these blocks to write; `is_free`: there is room, so that a write takes no other block's slot."""
        ...


class AdmitAll:
    """Every block is written."""

    def admit(self, keys: Sequence[BlockKey], *, is_free: bool) -> Mask:
        """See `Admission`."""
        del is_free
        return np.ones(len(keys), bool)


class AdmitFrequent:
    """Blocks that were computed or used at least `least` times lately; counts are halved every `n_aging` blocks.

    As the store threshold of offloading caches: a block that comes once is not written. A block that was refused
    and left host memory is lost until it is computed again.
    """

    def __init__(self, least: int = 2, n_aging: int = 1 << 20) -> None:
        if least < 1:
            raise ValueError(f"a threshold of {least}; give 1 or more")
        self.least = least
        """May be changed at any time."""
        self._sketch = CountSketch(n_aging, n_aging)

    def admit(self, keys: Sequence[BlockKey], *, is_free: bool) -> Mask:
        """See `Admission`."""
        del is_free
        hashes = [key.hash for key in keys]
        self._sketch.add(hashes)
        return self._sketch.count(hashes) >= self.least


class AdmitWorthy(AdmitFrequent):
    """The default: every block while the disk has room, and those seen before when a write takes another's slot.

    So nothing is lost while the disk fills, and after a restart what was computed is there; when it is full,
    blocks that come once (three of four in Mooncake's conversation trace) push out nothing and wear nothing.
    """

    def admit(self, keys: Sequence[BlockKey], *, is_free: bool) -> Mask:
        """See `Admission`."""
        return super().admit(keys, is_free=is_free) | is_free


ADMISSIONS: dict[str, Callable[[], Admission]] = {
    "default": AdmitWorthy,
    "all": AdmitAll,
    "frequency": AdmitFrequent,
}
"""What makes an admission, by its name in settings and options."""


def make_admission(name: str, setting: str) -> Admission:
    """A new admission. Raises `ConfigError`; see `plugins.make_named`."""
    return make_named("admission", name, setting, ADMISSIONS)
