"""The other folders that a disk root is striped over: by its note, and what lies in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tenuto.errors import ConfigError, StoreError
from tenuto.tiers.disk.instance import instances, left_over, namespaces
from tenuto.tiers.disk.runtime.stripeset import NAME, faults_of, read_place


@dataclass(frozen=True, slots=True)
class Stray:
    """A file or folder in the root, or in another folder of its stripe, that tenuto would not use, and why."""

    path: Path
    why: str


@dataclass(slots=True)
class Stripes:
    """`others`: in the order of the stripe, behind the root. `faults`: those that are gone, one line each."""

    others: tuple[Path, ...] = ()
    faults: list[str] = field(default_factory=list[str])


def find_stripes(folder: Path) -> Stripes:
    """What the note in a root says. Raises `ConfigError` when it can't be read, or says that another is the first."""
    try:
        place = read_place(folder)
    except StoreError as error:
        raise ConfigError(f"DIR: {error}; what lies where can't be told") from error
    if place is None:
        return Stripes()
    if place.index:
        raise ConfigError(f"DIR: {folder} is folder {place.index + 1} of a stripe; give the first, {place.folders[0]}")
    stripes = Stripes(tuple(Path(other) for other in place.folders[1:]))
    stripes.faults += [f"{fault}: its blocks can't be read" for fault in faults_of(place)]
    return stripes


def strays_in_stripes(root: Path, others: Sequence[Path]) -> list[Stray]:
    """What lies in other folders of a stripe and is no part of what the root has."""
    found = [
        Stray(path, "left over from a removal: it goes at the next start") for path in left_over(root, tuple(others))
    ]
    for other in others:
        homes = namespaces(other)
        found += strays(other, {"lock", NAME, *(home.name for home in homes)})
        for home in homes:
            found += strays(home, {path.name for path in instances(home)})
    return found


def strays(folder: Path, known: set[str]) -> list[Stray]:
    """What else lies in a folder."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    return [Stray(folder / name, "not tenuto's") for name in names if name not in known]
