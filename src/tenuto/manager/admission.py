"""Which blocks are worth a write to disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tenuto.plugins import make_named
from tenuto.pools.policies.sketch import CountSketch, hash_words
from tenuto.tokens import BlockKey

Mask = npt.NDArray[np.bool_]

_N_CHAINS = 16  # one of so many is watched
_LEAST_WATCHED, _MOST_WATCHED = 256, 4096  # blocks


class Admission(Protocol):
    """Asked for blocks in host memory that are not on disk. What is refused is asked for when it is next used."""

    def admit(self, keys: Sequence[BlockKey], *, n_free: int) -> Mask:
        """Which of these blocks to write; writes of the first `n_free` take no other block's slot."""
        ...


class AdmitAll:
    """Every block is written."""

    def admit(self, keys: Sequence[BlockKey], *, n_free: int) -> Mask:
        """See `Admission`."""
        del n_free
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

    def admit(self, keys: Sequence[BlockKey], *, n_free: int) -> Mask:
        """See `Admission`."""
        del n_free
        return self._count(keys) >= self.least

    def _count(self, keys: Sequence[BlockKey]) -> npt.NDArray[np.uint8]:
        """How often these were computed or used, now included."""
        hashes = [key.hash for key in keys]
        self._sketch.add(hashes)
        return self._sketch.count(hashes)


class AdmitWorthy(AdmitFrequent):
    """The default: all while the disk has room; when it is full, those seen before, and new ones where most return.

    So nothing is lost while the disk fills, and after a restart what was computed is there; when it is full, blocks
    that come once (three of four in Mooncake's conversation trace) push out nothing and wear nothing. Where more than
    half of the new blocks of a full disk come back, they are written at first sight: at the second it may be too late.
    That share is learnt from one chain in sixteen, whose new blocks are never written to a full disk.
    """

    def __init__(self) -> None:
        super().__init__()
        self._n_new = self._n_returned = 0
        """Of the chains that are watched: blocks seen for the first time, and those that were seen again."""

    def admit(self, keys: Sequence[BlockKey], *, n_free: int) -> Mask:
        """See `Admission`."""
        counts = self._count(keys)
        mask = counts >= self.least
        if n_free < len(keys):
            is_watched = hash_words([key.prefix for key in keys]) % _N_CHAINS == 0
            is_watched[:n_free] = False
            if self._n_new >= _LEAST_WATCHED and 2 * self._n_returned > self._n_new:
                mask |= ~is_watched
            self._n_new += int((is_watched & (counts == 1)).sum())
            self._n_returned += int((is_watched & (counts == 2)).sum())
            if self._n_new >= _MOST_WATCHED:
                self._n_new, self._n_returned = self._n_new // 2, self._n_returned // 2
        mask[:n_free] = True
        return mask


ADMISSIONS: dict[str, Callable[[], Admission]] = {
    "default": AdmitWorthy,
    "all": AdmitAll,
    "frequency": AdmitFrequent,
}
"""What makes an admission, by its name in settings and options."""


def make_admission(name: str, setting: str) -> Admission:
    """A new admission. Raises `ConfigError`; see `plugins.make_named`."""
    return make_named("admission", name, setting, ADMISSIONS)
