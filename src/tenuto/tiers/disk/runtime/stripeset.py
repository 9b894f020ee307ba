"""Which place each folder of a stripe has, kept in the folder: in another order, blocks would be other blocks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tenuto.errors import ConfigError, store_error

NAME = "stripe.json"


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Folder `index` of `n_folders`, over which units of `unit_bytes` go round."""

    index: int
    n_folders: int
    unit_bytes: int


def check_places(url: str, folders: Sequence[Path], unit_bytes: int) -> None:
    """Compare with what the folders say, and note it in those that are new.

    Raises `ConfigError` for folders in another order, number or unit, `StoreError` when it can't be noted.
    """
    wanted = [Place(index, len(folders), unit_bytes) for index in range(len(folders))]
    found = [_read(url, folder) for folder in folders]
    for folder, mine, its in zip(folders, wanted, found, strict=True):
        if its is not None and its != mine:
            was = f"number {its.index + 1} of {its.n_folders} with units of {its.unit_bytes} bytes"
            raise ConfigError(f"{url}: {folder} was {was}; give the folders as before, or delete {NAME} in all of them")
    for folder, mine, its in zip(folders, wanted, found, strict=True):
        if its is None:
            _write(folder, mine)


def _read(url: str, folder: Path) -> Place | None:
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Place)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        what = f"{folder / NAME} can't be read ({error})"
        raise ConfigError(f"{url}: {what}; restore it, or delete {NAME} in all folders") from error


def _write(folder: Path, place: Place) -> None:
    """Whole or not at all; engines that start together write the same."""
    new = folder / f"{NAME}.{os.getpid()}"
    try:
        new.write_bytes(msgspec.json.encode(place) + b"\n")
        new.replace(folder / NAME)
    except OSError as error:
        raise store_error(error, f"note the stripe in {folder}") from error
