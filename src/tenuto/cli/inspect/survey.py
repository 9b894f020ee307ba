"""Look at a disk root: models, instances, ranks, what each holds, and what is not tenuto's. Writes nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tenuto.cli.inspect.holders import Holder, Inode, holder_of
from tenuto.cli.inspect.stripes import Stray, Stripes, find_stripes, strays, strays_in_stripes
from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.tiers.agent.address import CONTROL
from tenuto.tiers.agent.mapfile import LISTINGS
from tenuto.tiers.agent.mapfile import NAME as VOLUMES
from tenuto.tiers.disk.files import pool_file_name, pool_file_sizes
from tenuto.tiers.disk.instance import instances, namespaces
from tenuto.tiers.disk.listing import SUFFIXES, Listing, read_listing
from tenuto.tiers.disk.manifest import NAME
from tenuto.tiers.disk.runtime.stripeset import NAME as NOTE
from tenuto.tiers.disk.slotmap import SlotMap
from tenuto.tokens import FORMAT_VERSION, Namespace

_RANK = re.compile(r"rank-(0|[1-9][0-9]*)")
_OURS = frozenset({"lock", CONTROL, LISTINGS, *(name + suffix for name in (NAME, VOLUMES) for suffix in SUFFIXES)})
_MOST_BYTES = 1 << 62


@dataclass(slots=True)
class RankFolder:
    """One writing process's folder. `listing` is None where the manifest can't be used; `fault` says why then."""

    folder: Path
    rank: int
    holder: Holder
    listing: Listing | None = None
    fault: str = ""
    is_unreadable: bool = False
    """The fault hides blocks that this tenuto should see: not another format, nor an engine that has just started."""
    format: str = ""
    """The format version that the manifest says; "" for none."""
    extent_bytes: int = 0
    allocated_bytes: int = 0
    """Bytes of the pool files there are."""
    notes: list[str] = field(default_factory=list[str])
    homes: tuple[Path, ...] = ()
    """The model's folder, and that in each other folder of the stripe."""

    @property
    def name(self) -> str:
        """As docs/format.md names it under the namespace: a/rank-0."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def n_blocks(self) -> int:
        """Listed blocks."""
        return len(self.listing.rows) if self.listing else 0

    @property
    def used_bytes(self) -> int:
        """Bytes of the listed blocks."""
        return self.n_blocks * self.extent_bytes

    @property
    def stamps(self) -> tuple[int, int] | None:
        """(oldest, newest) block, in nanoseconds since 1970."""
        if not self.listing or not self.listing.rows:
            return None
        stamps = [row.stamp for row in self.listing.rows]
        return min(stamps), max(stamps)


@dataclass(slots=True)
class Model:
    """One namespace folder. `namespace` is None where namespace.json does not say what it is."""

    folder: Path
    namespace: Namespace | None
    ranks: list[RankFolder] = field(default_factory=list[RankFolder])
    notes: list[str] = field(default_factory=list[str])
    unread: list[str] = field(default_factory=list[str])
    """Folders in it that can't be looked into, one line each."""

    @property
    def n_tokens(self) -> int:
        """Tokens of its blocks; every rank of an instance has a part of the same ones."""
        per_block = self.namespace.block_tokens if self.namespace else 0
        most: dict[Path, int] = {}
        for rank in self.ranks:
            most[rank.folder.parent] = max(most.get(rank.folder.parent, 0), rank.n_blocks)
        return per_block * sum(most.values())


@dataclass(slots=True)
class Root:
    """A whole disk root."""

    folder: Path
    models: list[Model] = field(default_factory=list[Model])
    strays: list[Stray] = field(default_factory=list[Stray])
    stripes: Stripes = field(default_factory=Stripes)

    @property
    def ranks(self) -> list[RankFolder]:
        """Of all models."""
        return [rank for model in self.models for rank in model.ranks]


def survey(folder: Path, held: frozenset[Inode] | None) -> Root:
    """All that is under a disk root. `held`: the locked files of this machine, see `held_files`.

    Raises `ConfigError` when it is no folder, has nothing in it, or is no disk root.
    """
    root = Root(folder)
    try:
        homes = namespaces(folder)
        root.stripes = find_stripes(folder)
        root.strays += strays(folder, {"lock", NOTE, *(home.name for home in homes)})
        if not root.stripes.faults:
            root.strays += strays_in_stripes(folder, root.stripes.others)
    except OSError as error:
        raise ConfigError(
            f"DIR: can't look into {folder} ({error.strerror}); give the folder that tiers.disk.path names"
        ) from None
    is_rank = (folder / NAME).exists()
    if not homes and (is_rank or not (folder / "lock").is_file()):
        what = "is one rank's part" if is_rank else "is no disk root of tenuto" if root.strays else "is empty"
        raise ConfigError(f"DIR: {folder} {what}; give the folder that tiers.disk.path names")
    root.models = [_survey_model(root, home, held) for home in homes]
    return root


def _survey_model(root: Root, home: Path, held: frozenset[Inode] | None) -> Model:
    model = Model(home, _namespace(home))
    if model.namespace is None:
        model.notes.append("namespace.json is missing or not this folder's: which model it is can't be told")
    with _noting(model, home):
        found = instances(home)
        root.strays += strays(home, {"namespace.json", *(path.name for path in found)})
        for instance in found:
            with _noting(model, instance):
                ranks = _ranks(instance)
                root.strays += strays(instance, {"owner", "split", *(path.name for path in ranks.values())})
                for number, path in sorted(ranks.items()):
                    with _noting(model, path):
                        model.ranks.append(_survey_rank(root, model, path, number, held))
    return model


def _ranks(instance: Path) -> dict[int, Path]:
    found = [path for path in instance.iterdir() if path.is_dir() and not path.is_symlink()]
    return {int(match[1]): path for path in found if (match := _RANK.fullmatch(path.name))}


def _survey_rank(root: Root, model: Model, folder: Path, number: int, held: frozenset[Inode] | None) -> RankFolder:
    homes = (model.folder, *(other / model.folder.name for other in root.stripes.others))
    rank = RankFolder(folder, number, holder_of(folder / "lock", held), homes=homes)
    try:
        _read_manifest(rank, model)
    except StoreError as error:
        rank.fault = "no manifest yet" if error.cause is Cause.MISSING else " ".join(str(error).split())
        rank.is_unreadable = error.cause is not Cause.MISSING
    sizes: Counter[str] = Counter()
    for home in homes:
        part = home / rank.name
        found = {pool_file_name(number): size for number, size in pool_file_sizes(part).items()}
        root.strays += strays(part, {*_OURS, *found}) if part.exists() else []
        sizes.update(found)
    rank.allocated_bytes = sizes.total()
    if rank.listing is not None and not root.stripes.faults:
        root.strays += _compare_files(rank, rank.listing, sizes)
    return rank


def _read_manifest(rank: RankFolder, model: Model) -> None:
    """Fill in what the manifest says. Raises `StoreError`."""
    listing = read_listing(rank.folder)
    meta = listing.meta
    rank.format = listing.format
    if not listing.is_readable:
        rank.fault = f"format {listing.format or 'unknown'}: this tenuto reads {FORMAT_VERSION}"
    elif meta.get("namespace") != model.folder.name:
        raise StoreError(Cause.CORRUPT, "manifest: made for another model")
    else:
        SlotMap(listing.files)  # numbered without gaps
        rank.extent_bytes = _block_bytes(meta)
        rank.listing = listing
        n_reset = sum(row.epoch != 0 for row in listing.rows)
        if n_reset:
            rank.notes.append(
                f"{n_reset} blocks were stored after a cache reset: they go when the folder is next opened"
            )


def _block_bytes(meta: dict[str, str]) -> int:
    with suppress(KeyError, ValueError):
        if 1 <= (n_bytes := int(meta["extent_bytes"])) < _MOST_BYTES:
            return n_bytes
    raise StoreError(Cause.CORRUPT, "manifest: does not say how large a block is")


def _compare_files(rank: RankFolder, listing: Listing, sizes: dict[str, int]) -> list[Stray]:
    """Notes on pool files that are listed and not whole; the ones that are not listed."""
    listed = {pool_file_name(number): n_slots * rank.extent_bytes for number, n_slots in listing.files.items()}
    for name, size in listed.items():
        if name not in sizes:
            rank.notes.append(f"{name} is gone: its blocks are misses")
        elif sizes[name] < size:
            rank.notes.append(f"{name} is cut short: {sizes[name]:,} of {size:,} bytes")
    why = "an unlisted pool file: " + (
        "it is being added, or goes at the next start" if rank.holder is Holder.LIVING else "it goes at the next start"
    )
    return [Stray(rank.folder / name, why) for name in sorted(sizes.keys() - listed.keys())]


def _namespace(home: Path) -> Namespace | None:
    """What namespace.json says, if that is what the folder's name is the digest of."""
    path = home / "namespace.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Namespace) if path.is_file() else None
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    return found if found and found.folder == home.name else None


@contextmanager
def _noting(model: Model, folder: Path) -> Generator[None]:
    """Make an operating system's error one line of the model's, and go on behind the block."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not folder.exists():
            model.notes.append(f"{folder.name} was removed meanwhile")
        else:
            model.unread.append(f"{folder.relative_to(model.folder.parent)} can't be read ({error.strerror})")
