"""Which disk each byte of a file lies on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Piece:
    """What one disk has of a range: one range of its part file, in pieces of memory (offset in the range, bytes)."""

    disk: int
    offset: int
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Striping:
    """Units of `unit_bytes` go round over `n_disks`: disk of an offset = ((offset // unit) + rotation) mod N.

    A disk's units lie one behind the other in its part file: unit u is the (u // N)-th of its disk, whatever the
    rotation, since N units in a row are on N disks.
    """

    n_disks: int = 1
    unit_bytes: int = 1 << 62

    def rotation(self, name: str) -> int:
        """The disk that a file begins on, by its name."""
        return crc32(name.encode()) % self.n_disks

    def cut(self, offset: int, length: int, rotation: int) -> list[Piece]:
        """The piece of every disk that has some of a range, each one range of its part file."""
        if self.n_disks == 1:
            return [Piece(0, offset, ((0, length),))]
        unit, n = self.unit_bytes, self.n_disks
        starts: dict[int, int] = {}
        parts: dict[int, list[tuple[int, int]]] = {}
        at = offset
        while at < offset + length:
            number, inside = divmod(at, unit)
            n_bytes = min(unit - inside, offset + length - at)
            disk = (number + rotation) % n
            starts.setdefault(disk, number // n * unit + inside)
            parts.setdefault(disk, []).append((at - offset, n_bytes))
            at += n_bytes
        return [Piece(disk, starts[disk], tuple(parts[disk])) for disk in parts]

    def part_bytes(self, n_bytes: int, rotation: int) -> list[int]:
        """Bytes of each disk's part of a file."""
        if self.n_disks == 1:
            return [n_bytes]
        rows, rest = divmod(n_bytes, self.unit_bytes * self.n_disks)
        sizes = [rows * self.unit_bytes] * self.n_disks
        for number in range(self.n_disks):
            sizes[(number + rotation) % self.n_disks] += max(0, min(self.unit_bytes, rest - number * self.unit_bytes))
        return sizes
