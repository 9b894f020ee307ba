"""Where each block is: a set of places, kept as bits."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

Place = tuple[str, str]
"""What kind of place (a tier, a medium), and which of that kind."""


class Places(Generic[K]):
    """The places of blocks of any name. Adding what is there, and removing what is not, change nothing."""

    def __init__(self) -> None:
        self._bits: dict[Place, int] = {}
        self._places: dict[K, int] = {}

    def __len__(self) -> int:
        """Blocks that are somewhere."""
        return len(self._places)

    def __contains__(self, key: K) -> bool:
        return key in self._places

    def add(self, key: K, place: Place) -> None:
        """`key` is in `place`, too."""
        bit = self._bits.get(place)
        if bit is None:
            bit = self._bits[place] = 1 << len(self._bits)
        self._places[key] = self._places.get(key, 0) | bit

    def all(self) -> list[Place]:
        """The places that were ever named."""
        return list(self._bits)

    def at(self, place: Place) -> list[K]:
        """The blocks that are in `place`."""
        bit = self._bits.get(place, 0)
        return [key for key, bits in self._places.items() if bits & bit]

    def is_at(self, key: K, place: Place) -> bool:
        """Whether `key` is in `place`."""
        return bool(self._places.get(key, 0) & self._bits.get(place, 0))

    def is_in(self, key: K, kind: str) -> bool:
        """Whether `key` is in any place of this kind."""
        return bool(self._places.get(key, 0) & self._mask(kind))

    def discard(self, key: K, place: Place) -> None:
        """`key` is not in `place` any more."""
        self._drop(key, self._bits.get(place, 0))

    def clear(self, kind: str, which: str = "") -> list[K]:
        """Nothing is in that place any more, or with no name in any of its kind. Gives the blocks that were."""
        mask = self._bits.get((kind, which), 0) if which else self._mask(kind)
        keys = [key for key, bits in self._places.items() if bits & mask] if mask else []
        for key in keys:
            self._drop(key, mask)
        return keys

    def clear_all(self) -> list[K]:
        """Nothing is anywhere any more. Gives the blocks that were."""
        keys = list(self._places)
        self._places.clear()
        return keys

    def _mask(self, kind: str) -> int:
        return sum(bit for place, bit in self._bits.items() if place[0] == kind)

    def _drop(self, key: K, mask: int) -> None:
        bits = self._places.get(key, 0)
        left = bits & ~mask
        if left:
            self._places[key] = left
        elif bits:
            del self._places[key]
