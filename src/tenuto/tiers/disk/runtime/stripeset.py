"""Which folders make one stripe, noted in each: in another order, or with another disk, blocks are other blocks."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tenuto.errors import Cause, ConfigError, StoreError, store_error

NAME = "stripe.json"
UNIT_BYTES = 1 << 20
"""What goes round over the folders, unless something else is said."""


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Folder `index` of `folders`, over which units of `unit_bytes` go round. `stripe` is drawn when it is made."""

    stripe: str
    index: int
    folders: tuple[str, ...]
    unit_bytes: int


def read_place(folder: Path) -> Place | None:
    """What a folder says; None where it is of no stripe. Raises `StoreError`, CORRUPT for what is none of ours."""
    path = folder / NAME
    try:
        place = msgspec.json.decode(path.read_bytes(), type=Place)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise store_error(error, f"read {path}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise StoreError(Cause.CORRUPT, f"{path} can't be read: {error}") from error
    if not 0 <= place.index < len(place.folders):
        raise StoreError(Cause.CORRUPT, f"{path} can't be read: it has no place {place.index}")
    return place


def faults_of(first: Place) -> list[str]:
    """By the note of the first folder: which others are not what it says, one line each."""
    faults: list[str] = []
    for index, name in enumerate(first.folders[1:], start=1):
        if why := _fault(Path(name), first, index):
            faults.append(f"{name}, folder {index + 1} of the stripe, {why}")
    return faults


def _fault(folder: Path, first: Place, index: int) -> str:
    try:
        place = read_place(folder)
        if place is None:
            return "has no note of it (is its disk mounted?)" if folder.exists() else "is not there"
    except (StoreError, OSError) as error:
        return " ".join(str(error).split())
    return "" if (place.stripe, place.index) == (first.stripe, index) else "is a folder of another stripe now"


def settle(what: str, folders: Sequence[Path], unit_bytes: int, is_unused: Callable[[Path], bool]) -> None:
    """See that folders are the stripe that they were, or make them one; `what` begins each message.

    A stripe is made of folders that are all unused, and is one when the first has its note. Hold a lock that keeps
    others from making one of the same folders. Raises `ConfigError` for folders in another order, number or unit,
    `StoreError` (MISSING) for one that is gone, as a disk that is not mounted. Neither changes anything.
    """
    _check_distinct(what, folders)
    found = [_read(what, folder) for folder in folders]
    made = next((place for place in found if place is not None), None)
    if made is not None and _is_half_made(folders, found, is_unused):
        made = None
    stripe = secrets.token_hex(8) if made is None else made.stripe
    names = tuple(str(folder.absolute()) for folder in folders)
    wanted = [Place(stripe, index, names, unit_bytes) for index in range(len(folders))]
    if made is None:
        _make(what, folders, wanted, is_unused)
        return
    _compare(what, folders, wanted, found)
    for folder, mine, its in zip(folders, wanted, found, strict=True):
        if its != mine:  # they are mounted elsewhere now
            _write(folder, mine)


def _compare(what: str, folders: Sequence[Path], wanted: Sequence[Place], found: Sequence[Place | None]) -> None:
    for folder, mine, its in zip(folders, wanted, found, strict=True):
        if its is None or ((its.stripe, its.index) == (mine.stripe, mine.index) and _shape(its) == _shape(mine)):
            continue
        was = f"number {its.index + 1} of {len(its.folders)} with units of {its.unit_bytes} bytes"
        other = "" if its.stripe == mine.stripe else " in another stripe"
        raise ConfigError(f"{what}: {folder} was {was}{other}; give the folders as before, or empty all of them")
    for folder, its in zip(folders, found, strict=True):
        if its is None:
            raise StoreError(
                Cause.MISSING,
                f"{what}: {folder} is not the folder of the stripe that it was: is its disk mounted? "
                "For a new disk, empty all folders of the stripe",
            )


def _shape(place: Place) -> tuple[int, int]:
    return len(place.folders), place.unit_bytes


def _is_half_made(folders: Sequence[Path], found: Sequence[Place | None], is_unused: Callable[[Path], bool]) -> bool:
    """Whether its maker was killed before the first folder had its note: nothing can lie there yet."""
    return found[0] is None and all(folder.is_dir() and is_unused(folder) for folder in folders)


def _make(what: str, folders: Sequence[Path], places: Sequence[Place], is_unused: Callable[[Path], bool]) -> None:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_free = is_unused(folder)
        except OSError as error:
            raise ConfigError(f"{what}: can't use {folder} ({error.strerror}); choose another folder") from error
        if not is_free:
            raise ConfigError(f"{what}: {folder} holds files that are not striped; give an empty folder, or empty it")
    _check_distinct(what, folders)
    for folder, place in reversed(list(zip(folders, places, strict=True))):
        _write(folder, place)


def _check_distinct(what: str, folders: Sequence[Path]) -> None:
    """Of those that are there: one may be there twice by a link, or be mounted twice."""
    seen: dict[tuple[int, int], Path] = {}
    for folder in folders:
        with suppress(OSError):
            stat = folder.stat()
            other = seen.setdefault((stat.st_dev, stat.st_ino), folder)
            if other is not folder:
                raise ConfigError(f"{what}: a folder is there twice: {other} and {folder} are one; give each once")


def _read(what: str, folder: Path) -> Place | None:
    try:
        return read_place(folder)
    except StoreError as error:
        if error.cause is Cause.CORRUPT:
            raise ConfigError(f"{what}: {error}; restore it, or empty all folders of the stripe") from error
        raise


def _write(folder: Path, place: Place) -> None:
    """Whole or not at all."""
    new = folder / f"{NAME}.{os.getpid()}"
    try:
        new.write_bytes(msgspec.json.encode(place) + b"\n")
        new.replace(folder / NAME)
    except OSError as error:
        raise store_error(error, f"note the stripe in {folder}") from error
