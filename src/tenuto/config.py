"""The settings: frozen structs, decoded strictly. No object reads the environment.

The same names serve a connector's JSON (`kv_connector_extra_config`) and the command line.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, cast

import msgspec

from tenuto.errors import ConfigError

_UNITS = {"": 1, "B": 1} | {
    unit: base**power
    for power, letter in enumerate("KMGT", start=1)
    for unit, base in ((f"{letter}iB", 1024), (letter, 1024), (f"{letter}B", 1000))
}
_MOST_BYTES = 1 << 62
_MOST_SECONDS = 86400
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)\s*")


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are cut into blocks."""

    block_tokens: int = 0
    """Tokens per block, a multiple of the engine's block. 0: chosen so that a layer is at least 256 KiB."""


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The host memory tier."""

    capacity: str | int = "4 GiB"
    """Bytes of host memory per rank."""


class Disk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The disk tier; off while `path` is empty."""

    path: str = ""
    """Folder on a local disk, shared by all engines of the node."""
    capacity: str | int = "auto"
    """Bytes for all engines of the node together. "auto": half of what is free or already ours."""
    io_threads: int = 8
    """Persistent threads that read and write extents."""
    file_bytes: str | int = "1 GiB"
    """Size of one pool file, at most a sixteenth of the capacity; files are added as they are needed."""
    poll_s: float = 2.0
    """How often the blocks of other engines on this node are looked up; 0: only at start."""


class Tiers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where blocks are kept below the engine."""

    host: Host = Host()
    disk: Disk = Disk()


class Runtime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deadlines and bounds."""

    load_timeout_s: float = 30.0
    """A load that has not ended by then is given up: the engine recomputes."""
    shutdown_timeout_s: float = 20.0
    """How long pending disk writes may take at shutdown."""
    write_window: str | int = "512 MiB"
    """Bytes on the way to disk at any time; more waits in host memory, or is skipped."""
    retry_s: float = 10.0
    """How long a tier that keeps failing is left alone before it is tried again."""
    cache_generated: bool = True
    """Keep the blocks of generated tokens too, not only those of prompts."""
    metrics_port: int = 0
    """Port for Prometheus; the ranks of data parallelism take it and the next ones. 0: none."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of one engine."""

    layout: Layout = Layout()
    tiers: Tiers = Tiers()
    runtime: Runtime = Runtime()


def parse_size(value: str | int, setting: str) -> int:
    """Bytes of "4 GiB", "512MiB", "2e9" is not one; raises `ConfigError` naming `setting`."""
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 < value < _MOST_BYTES:
            return value
    elif isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match and match[2] in _UNITS and 1 <= float(match[1]) * _UNITS[match[2]] < _MOST_BYTES:
            return int(float(match[1]) * _UNITS[match[2]])
    raise ConfigError(f'{setting}: {value!r} is not a size; write it as "4 GiB", "512 MiB" or bytes')


def in_mib(n_bytes: int) -> str:
    """A size that `parse_size` reads back as no less: whole MiB, rounded up."""
    return f"{-(-n_bytes // (1 << 20))} MiB"


def load_config(settings: dict[str, Any]) -> Config:
    """Decode and validate `settings`; raises `ConfigError` with one line that names the setting."""
    _reject_unknown(settings, Config, "")
    try:
        config = msgspec.convert(settings, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_one_line(error)) from None
    _validate(config)
    return config


def _one_line(error: msgspec.ValidationError) -> str:
    text, _, where = str(error).partition(" - at `$.")
    return f"{where.rstrip('`') or 'settings'}: {text[:1].lower()}{text[1:]}"


def _reject_unknown(settings: dict[str, Any], struct: type[msgspec.Struct], path: str) -> None:
    known = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for key, value in settings.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f"did you mean {path}{near[0]}?" if near else f"known: {', '.join(known)}"
            name = " ".join(f"{path}{key}".split())
            raise ConfigError(f"{name}: unknown setting; {hint}")
        inner = known[key]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            if not isinstance(value, dict):
                raise ConfigError(f"{path}{key}: expected a group of settings, got {value!r}")
            _reject_unknown(cast("dict[str, Any]", value), inner, f"{path}{key}.")


def _validate(config: Config) -> None:
    parse_size(config.tiers.host.capacity, "tiers.host.capacity")
    parse_size(config.tiers.disk.file_bytes, "tiers.disk.file_bytes")
    parse_size(config.runtime.write_window, "runtime.write_window")
    if config.tiers.disk.capacity != "auto":
        parse_size(config.tiers.disk.capacity, "tiers.disk.capacity")
    ranges = [
        ("layout.block_tokens", config.layout.block_tokens, 0, 1 << 20),
        ("tiers.disk.io_threads", config.tiers.disk.io_threads, 1, 256),
        ("tiers.disk.poll_s", config.tiers.disk.poll_s, 0, _MOST_SECONDS),
        ("runtime.load_timeout_s", config.runtime.load_timeout_s, 0.001, _MOST_SECONDS),
        ("runtime.shutdown_timeout_s", config.runtime.shutdown_timeout_s, 0, _MOST_SECONDS),
        ("runtime.retry_s", config.runtime.retry_s, 0, _MOST_SECONDS),
        ("runtime.metrics_port", config.runtime.metrics_port, 0, 65535),
    ]
    for setting, value, least, most in ranges:
        if not least <= value <= most:
            raise ConfigError(f"{setting}: {value} is out of range; give {least} to {most}")
    if "\0" in config.tiers.disk.path:
        raise ConfigError("tiers.disk.path: has a zero byte in it; give the path of a folder")
