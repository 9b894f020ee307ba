"""Opening an agent: its home volume, and those that were registered before."""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tenuto.errors import ConfigError, StoreError
from tenuto.memory.extent import ExtentCodec
from tenuto.settings import expand_user
from tenuto.tiers.agent.bucket import SCHEMES, open_raw
from tenuto.tiers.agent.mapfile import LISTINGS, Listed
from tenuto.tiers.agent.objects import ObjectStore, is_object_url
from tenuto.tiers.agent.volume import Volume
from tenuto.tiers.disk import DiskSettings, DiskStore
from tenuto.tiers.disk.instance import claim, remove_dead, root_lock
from tenuto.tiers.disk.quota import Quota
from tenuto.tokens import Namespace

logger = logging.getLogger(__name__)

_FILE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class VolumeOpener:
    """Opens a rank's volumes. `folder` is the rank's own, under the home volume's root."""

    folder: Path
    namespace: Namespace
    codec: ExtentCodec
    rank: int
    split: str

    def check(self, listed: Listed) -> None:
        """Raise `ConfigError` for what can never be a volume, as far as that can be told without touching anything."""
        if listed.capacity_bytes < 2 * self.codec.layout.extent_bytes:
            raise ConfigError(
                f"volume {listed.name}: a capacity of {listed.capacity_bytes} bytes has no room for two blocks of "
                f"{self.codec.layout.extent_bytes}; give more"
            )
        if _is_objects(listed):
            return
        root = folder_of(listed.name, listed.url)
        try:
            if root.is_block_device():
                raise ConfigError(
                    f"volume {listed.name}: {root} is a block device; make a file system on it, and give its folder"
                )
            home, there = self.folder.parents[2].resolve(), root.resolve()
            if there.is_relative_to(home) or home.is_relative_to(there):
                raise ConfigError(
                    f"volume {listed.name}: {root} is in the home volume's folder, or has it; give another"
                )
            if not root.is_dir():
                raise ConfigError(f"volume {listed.name}: there is no folder {root}; make it, or mount its disk")
        except OSError as error:
            raise ConfigError(f"volume {listed.name}: {error.strerror or error}: {str(root)[:200]}") from None

    def open(self, listed: Listed) -> Volume:
        """Raises `ConfigError` for what can never be a volume, `StoreError` for a reason that may pass."""
        self.check(listed)
        if _is_objects(listed):
            prefix = f"{self.namespace.folder}/{listed.owner}/rank-{self.rank}"
            folder = self.folder / LISTINGS / listed.name
            return ObjectStore(open_raw(listed.url), prefix, folder, self.codec, listed.capacity_bytes)
        return self._open_folder(listed, folder_of(listed.name, listed.url))

    def erase(self, name: str, volume: Volume) -> None:
        """Remove what is left of a volume that is empty and closed, as far as that can be done."""
        if isinstance(volume, DiskStore):
            instance = volume.claim.instance
            with suppress(OSError), root_lock(instance.parents[1]):
                remove_dead(instance)
        elif isinstance(volume, ObjectStore):
            try:
                volume.clear()
            except StoreError as error:
                logger.warning("tenuto: volume %s: objects are left in its store: %s", name, error)
            shutil.rmtree(self.folder / LISTINGS / name, ignore_errors=True)

    def _open_folder(self, listed: Listed, root: Path) -> DiskStore:
        try:
            mine = claim(root, self.namespace, listed.owner, self.rank, self.split, takes_over=False)
        except ConfigError as error:
            raise ConfigError(f"volume {listed.name}: {str(error).removeprefix('tiers.disk.path: ')}") from None
        with ExitStack() as undo:
            undo.callback(os.close, mine.lock_fd)
            settings = DiskSettings(Quota(root, listed.capacity_bytes), _FILE_BYTES)
            store = DiskStore(mine, self.codec, settings, self.rank)
            undo.pop_all()
        return store


def _is_objects(listed: Listed) -> bool:
    """Whether it is an object store. Raises `ConfigError` for an URL that is none."""
    try:
        listed.url.encode()
        if "\0" not in listed.url:
            return is_object_url(listed.url)
    except ValueError:
        pass
    raise ConfigError(f"volume {listed.name}: {listed.url!r} is no URL and no path")


def folder_of(name: str, url: str) -> Path:
    """The folder that a volume's URL means: a path, or file://PATH. Raises `ConfigError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("", "file"):
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES[:3])
        raise ConfigError(
            f"volume {name}: {url!r} is neither a folder nor an object store; give a path, file://PATH, or {known}..."
        )
    path = expand_user(Path(unquote(parts.path) if parts.scheme else url), f"volume {name}")
    is_odd = parts.netloc or (parts.scheme and (parts.query or parts.fragment))
    if is_odd or "\0" in str(path) or not path.is_absolute():
        raise ConfigError(f"volume {name}: {url!r} is no absolute path; give one, as /mnt/fast or file:///mnt/fast")
    return path


def open_listed(opener: VolumeOpener, listed: list[Listed]) -> dict[str, Volume]:
    """Those that can be opened now; the others are told about, and tried again at the next start."""
    found: dict[str, Volume] = {}
    for volume in listed:
        try:
            found[volume.name] = opener.open(volume)
        except (ConfigError, StoreError) as error:
            logger.warning(
                "tenuto: volume %s is off until the next start, and its blocks are lost: %s", volume.name, error
            )
    return found
