"""From a URL to a runtime."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tenuto.errors import ConfigError
from tenuto.memory.driver import CudaDriver
from tenuto.tiers.disk.runtime.contract import Caps, StorageRuntime
from tenuto.tiers.disk.runtime.cufile import CuFiles, check_folder, load_cufile, missing_for_cufile
from tenuto.tiers.disk.runtime.device import Device
from tenuto.tiers.disk.runtime.direct import DirectFiles
from tenuto.tiers.disk.runtime.folders import FolderRuntime
from tenuto.tiers.disk.runtime.memory import MemoryFiles
from tenuto.tiers.disk.runtime.nixl import PLUGINS, NixlRuntime, check_files, load_nixl, missing_for
from tenuto.tiers.disk.runtime.stripeset import NAME, UNIT_BYTES, settle
from tenuto.tiers.disk.runtime.striping import Striping

_LEAST_ALIGNMENT = 4096
WrapDevice = Callable[[Device], Device]


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """`n_threads` are of each disk, `max_open_files` of all; `stripe_bytes` is the unit that goes round over disks.

    Without `n_threads` there are as many as were found best. `is_queued`: move bytes by the kernel's queue where it
    works, and by threads elsewhere.
    """

    n_threads: int | None = None
    is_queued: bool = True
    max_in_flight: int = 1024
    alignment_bytes: int = 4096
    stripe_bytes: int = UNIT_BYTES
    max_open_files: int = 512


def open_runtime(
    url: str, settings: RuntimeSettings | None = None, wrap_device: WrapDevice = lambda device: device
) -> StorageRuntime:
    """`file:///folder`, `striped:///folder,/folder`, `mem://`, `nixl+posix:///folder` (gds, gds_mt), `cufile:///folder`.

    `wrap_device`: put something, as a fault, between the threads of `mem`, `file`, `striped` and `cufile` and each
    disk. Raises `ConfigError`, one line, for what can't be opened, with what is missing, and `StoreError`
    for what may pass.
    """
    settings = settings or RuntimeSettings()
    _check(settings)
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in _SCHEMES:
        raise ConfigError(
            f"{url!r} names no storage runtime; give one of {', '.join(f'{name}://' for name in _SCHEMES)}"
        )
    return _SCHEMES[scheme](url, rest, settings, wrap_device)


def what_is_missing() -> dict[str, str]:
    """Of each runtime over a foreign library: what it lacks here, and what brings it; empty for one that has all."""
    found = {f"nixl+{plugin.lower()}": missing_for(plugin) for plugin in PLUGINS}
    return found | {"cufile": missing_for_cufile()}


def _check(settings: RuntimeSettings) -> None:
    alignment = settings.alignment_bytes
    if alignment < _LEAST_ALIGNMENT or alignment & (alignment - 1):
        raise ConfigError(f"alignment: {alignment} is not a power of two of at least {_LEAST_ALIGNMENT} bytes")
    if settings.stripe_bytes < alignment or settings.stripe_bytes % alignment:
        raise ConfigError(f"stripe: {settings.stripe_bytes} bytes is not a multiple of the alignment, {alignment}")
    if (
        min(1 if settings.n_threads is None else settings.n_threads, settings.max_in_flight, settings.max_open_files)
        < 1
    ):
        raise ConfigError("a runtime needs a thread, an item in flight and an open file at least")


def _caps(name: str, settings: RuntimeSettings) -> Caps:
    alignment = settings.alignment_bytes
    return Caps(name, alignment, alignment, max_in_flight=settings.max_in_flight)


def _folder(url: str, text: str) -> Path:
    if not text:
        raise ConfigError(f"{url}: no folder; give an absolute one, as {url.partition('://')[0]}:///data/kv")
    path = Path(text)
    if not path.is_absolute():
        raise ConfigError(f"{url}: {text} is not an absolute folder")
    try:
        is_folder, is_there = path.is_dir(), path.exists()
    except OSError as error:
        raise ConfigError(f"{url}: can't look at the folder ({error.strerror}); give another") from error
    if not is_folder:
        raise ConfigError(f"{url}: {text} is not a folder" if is_there else f"{url}: there is no folder {text}")
    return path


def run_devices(name: str, devices: Sequence[Device], settings: RuntimeSettings) -> FolderRuntime:
    """The runtime of one device, or of files striped over several."""
    caps = Caps(name, settings.alignment_bytes, settings.alignment_bytes, max_in_flight=settings.max_in_flight)
    striping = Striping(len(devices), settings.stripe_bytes)
    return FolderRuntime(caps, devices, striping, settings.n_threads, is_queued=settings.is_queued)


def _open_memory(url: str, rest: str, settings: RuntimeSettings, wrap: WrapDevice) -> StorageRuntime:
    if rest:
        raise ConfigError(f"{url}: mem:// takes no folder")
    return run_devices("mem", [wrap(MemoryFiles())], settings)


def _open_file(url: str, rest: str, settings: RuntimeSettings, wrap: WrapDevice) -> StorageRuntime:
    return run_devices("file", [wrap(DirectFiles(_folder(url, rest), settings.max_open_files))], settings)


def _open_striped(url: str, rest: str, settings: RuntimeSettings, wrap: WrapDevice) -> StorageRuntime:
    folders = [_folder(url, part.strip()) for part in rest.split(",")]
    settle(url, folders, settings.stripe_bytes, _is_empty)
    n_open = max(1, settings.max_open_files // len(folders))
    devices = [wrap(DirectFiles(folder, n_open)) for folder in folders]
    return run_devices("striped", devices, settings)


def _is_empty(folder: Path) -> bool:
    """But for a note, or one that was being written."""
    return all(path.name.startswith(NAME) for path in folder.iterdir())


def _open_nixl(url: str, rest: str, settings: RuntimeSettings, _: WrapDevice) -> StorageRuntime:
    plugin = url.partition("://")[0].removeprefix("nixl+").upper()
    root = _folder(url, rest)
    caps = replace(_caps(f"nixl+{plugin.lower()}", settings), has_device_memory=plugin != "POSIX")
    library = load_nixl(plugin, f"tenuto-{uuid.uuid4().hex}")
    check_files(root, library)
    return NixlRuntime(caps, root, library, settings.max_open_files)


def _open_cufile(url: str, rest: str, settings: RuntimeSettings, wrap: WrapDevice) -> StorageRuntime:
    root = _folder(url, rest)
    cufile = load_cufile()
    check_folder(root, cufile)
    device = wrap(CuFiles(root, cufile, CudaDriver(), settings.max_open_files))
    caps = replace(_caps("cufile", settings), has_device_memory=True)
    return FolderRuntime(caps, [device], Striping(), settings.n_threads)


_SCHEMES: dict[str, Callable[[str, str, RuntimeSettings, WrapDevice], StorageRuntime]] = {
    "mem": _open_memory,
    "file": _open_file,
    "striped": _open_striped,
    "cufile": _open_cufile,
    **{f"nixl+{plugin.lower()}": _open_nixl for plugin in PLUGINS},
}
