"""The advisor's settings: frozen structs, decoded strictly, as an engine's (`tenuto.config`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from tenuto.advisor.agents import HOME
from tenuto.config import File, Folder, Seconds, Size, Texts, Url, find_faults, parse_size
from tenuto.errors import ConfigError
from tenuto.plugins import why_unknown
from tenuto.settings import Source, flatten, nest, read_toml

RULE_NAMES = ("demote", "promote", "prune", "compact")
HOME_WORD = "home"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class EventsFrom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose events are heard."""

    url: Url = ""
    """As `events.url` of the engine, or of the broker."""
    n_ranks: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    """Data-parallel ranks that publish there; a broker has all of them at one address."""


class DiskAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which engines' disk tiers are driven."""

    path: Folder = ""
    """As `tiers.disk.path` of the engines. Empty: none, and the index alone is kept."""


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much may be moved, dropped and compacted for one engine; five seconds' worth may come at once."""

    blocks_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 1000.0
    """By all rules together."""
    bytes_per_s: Size = "4 GiB"
    """By all rules together."""
    rule_blocks_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 500.0
    """By one rule."""
    rule_bytes_per_s: Size = "2 GiB"
    """By one rule."""


class PruneAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When blocks are dropped."""

    most_age_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    """Not used for so long; 0: never."""
    most_share: Share = 1.0
    """The coldest of a volume that is filled beyond this; 1: never."""


class CompactAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a volume's files are made smaller."""

    least_free_share: Share = 0.5
    """So much of them is free."""
    every_s: Seconds = 60.0
    """At most once in this time."""


class AdvisorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of `tenuto advisor`."""

    events: EventsFrom = EventsFrom()
    disk: DiskAt = DiskAt()
    volumes: Texts = ()
    """Volumes in the order of their speed, each NAME=FOLDER?capacity=SIZE (or an object store's URL in place of the
    folder); "home", where engines write new blocks, comes last unless it is named."""
    rules: Texts = RULE_NAMES
    """In the order in which they are asked: "demote", "promote", "prune", "compact", or a class of others,
    "module:Class"."""
    rates: Rates = Rates()
    prune: PruneAt = PruneAt()
    compact: CompactAt = CompactAt()
    tick_s: Annotated[float, msgspec.Meta(ge=0.01, le=3600)] = 0.1
    """How often rules are asked, at most."""
    dry_run: bool = False
    """Only tell in the log what would be done."""
    http: Url = ""
    """"HOST:PORT" to serve the index as JSON at; empty: no."""
    http_anywhere: bool = False
    """Whether `http` may be another address than this machine's own loopback."""
    log_file: File = ""
    """Where orders are written, a JSON object a line; empty: in the log alone."""


@dataclass(frozen=True, slots=True)
class VolumeSetting:
    """A volume to register; `url` is empty for the home volume, which engines have by themselves."""

    name: str
    url: str = ""
    capacity_bytes: int = 0


def load_advisor_settings(path: Path | None = None, given: dict[str, Any] | None = None) -> AdvisorSettings:
    """What stands in a TOML file, and over it what is `given` by dotted name.

    Raises `ConfigError`: one line for each setting that is wrong.
    """
    sources = [read_toml(path)] if path is not None else []
    sources.append(Source("option", nest(given or {})))
    faults: list[str] = []
    merged: dict[str, Any] = {}
    for source in sources:
        for fault in find_faults(source.settings, AdvisorSettings):
            where = f"{source.place(fault.setting)}: " if source.lines else ""
            faults.append(f"{where}{fault.setting}: {fault.why}")
        merged |= flatten(source.settings)
    if not faults:
        settings = msgspec.convert(nest(merged), AdvisorSettings)
        faults = _conflicts(settings)
        if not faults:
            return settings
    raise ConfigError("\n".join(faults))


def parse_volumes(texts: tuple[str, ...]) -> tuple[VolumeSetting, ...]:
    """The volumes of the setting, in its order, with home. Raises `ConfigError` for text that is none."""
    found = [VolumeSetting(HOME) if text == HOME_WORD else _parse_volume(text) for text in texts]
    names = [volume.name for volume in found]
    if len(set(names)) < len(names):
        raise ConfigError("volumes: two have one name; give each its own")
    return tuple(found) if HOME in names else (*found, VolumeSetting(HOME))


def check_disk(disk: DiskAt) -> None:
    """Raises `ConfigError` where the folder is not there: engines that run have made it."""
    if disk.path and not Path(disk.path).is_dir():
        raise ConfigError(f"disk.path: no folder {disk.path} is there; give the engines' tiers.disk.path")


def parse_http(address: str, *, may_be_anywhere: bool = False) -> tuple[str, int]:
    """Host and port. Raises `ConfigError` for what is none, and for one that others can reach, unless they may."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 <= int(port) < 1 << 16:
        raise ConfigError(f"http: {address!r} is no address; give HOST:PORT, as 127.0.0.1:8780")
    if host not in ("127.0.0.1", "localhost", "::1") and not may_be_anywhere:
        raise ConfigError(f"http: {host} can be reached by others; give 127.0.0.1, or http_anywhere = true beside it")
    return host, int(port)


def _parse_volume(text: str) -> VolumeSetting:
    name, _, where = text.partition("=")
    place, _, query = where.rpartition("?")
    options = dict(parse_qsl(query))
    if not place or not _NAME.fullmatch(name) or set(options) != {"capacity"}:
        raise ConfigError(f"volumes: {text!r} is no volume; write it as fast=/mnt/fast?capacity=100GiB")
    if name == HOME_WORD:
        raise ConfigError("volumes: home is the engines' own; give another name, or no more than that word")
    scheme = urlsplit(place).scheme
    if not scheme and not place.startswith("/"):
        raise ConfigError(f"volumes: {name}: {place!r} is no absolute path and no URL; give one of these")
    return VolumeSetting(name, place if scheme else f"file://{place}", parse_size(options["capacity"], "volumes"))


def _conflicts(settings: AdvisorSettings) -> list[str]:
    faults = [why for name in settings.rules if (why := why_unknown("rule", name, RULE_NAMES, takes_classes=True))]
    faults = [f"rules: {why}" for why in faults]
    if len(set(settings.rules)) < len(settings.rules):
        faults.append("rules: one is named twice; name each once")
    for setting, size in (
        ("rates.bytes_per_s", settings.rates.bytes_per_s), ("rates.rule_bytes_per_s", settings.rates.rule_bytes_per_s),
    ):  # fmt: skip
        faults += _fault_of(lambda size=size, setting=setting: parse_size(size, setting))
    wrong = _fault_of(lambda: parse_volumes(settings.volumes))
    faults += wrong
    if not wrong and set(settings.volumes) - {HOME_WORD} and not settings.disk.path:
        faults.append("volumes: of nobody; give disk.path too, the engines' tiers.disk.path")
    if settings.http:
        faults += _fault_of(lambda: parse_http(settings.http, may_be_anywhere=settings.http_anywhere))
    return faults


def _fault_of(look: Any) -> list[str]:
    try:
        look()
    except ConfigError as error:
        return [str(error)]
    return []
