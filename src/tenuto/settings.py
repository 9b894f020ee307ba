"""Settings from several places: a TOML file, keys given beside it, options of the command line. The last one wins."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, cast

import msgspec

from tenuto.config import Config, Fault, find_conflicts, find_faults, leaves
from tenuto.errors import ConfigError

DEFAULT = "default"
"""The place of a setting that nobody gave."""

_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"\s*([\w\-.\"' \t]+?)\s*=")
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


@dataclass(frozen=True, slots=True)
class Source:
    """Nested settings given in one place, with the line of each where that is a file."""

    name: str
    settings: dict[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict[str, int])

    def place(self, setting: str) -> str:
        """Where `setting`, or the group it was given with, stands: "tenuto.toml:7", or the source's name."""
        while setting and setting not in self.lines:
            setting = setting.rpartition(".")[0]
        return f"{self.name}:{self.lines[setting]}" if setting else self.name


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective settings, and the place of each: `DEFAULT`, or as `Source.place` says."""

    config: Config
    places: dict[str, str]
    in_files: frozenset[str] = frozenset()
    """Those that stand in a file."""

    def where(self, *names: str) -> str:
        """What a line on these settings begins with: "tenuto.toml:7: " where the first that is given is in a file."""
        given = next((name for name in names if self.places[name] != DEFAULT), "")
        return f"{self.places[given]}: " if given in self.in_files else ""


def read_toml(path: Path) -> Source:
    """The settings of a TOML file. Raises `ConfigError` when it can't be read, naming the line where there is one."""
    try:
        text = expand_user(path, "config").read_text("utf-8-sig")  # editors of Windows write a mark before it
    except OSError as error:
        raise ConfigError(f"config: can't read {path} ({error.strerror}); give the path of a TOML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"config: {path} is not UTF-8 text; give the path of a TOML file") from None
    except ValueError:
        raise ConfigError(f"config: {str(path)!r} is no path; give the path of a TOML file") from None
    try:
        found = tomllib.loads(text)
        repr(found)  # what can't be shown can't be told about
        return Source(str(path), found, _find_lines(text))
    except tomllib.TOMLDecodeError as error:
        line = _AT_LINE.search(str(error))
        where = f"{path}:{line[1]}" if line else str(path)
        raise ConfigError(f"{where}: not TOML: {_AT_LINE.sub('', str(error))}") from None
    except ValueError:
        raise ConfigError(f"{path}: not TOML for tenuto: a number has thousands of digits") from None
    except RecursionError:
        raise ConfigError(f"{path}: not TOML for tenuto: hundreds of brackets or names in each other") from None


def expand_user(path: Path, setting: str) -> Path:
    """The path without its leading ~. Raises `ConfigError` naming the setting when that is nobody's home."""
    try:
        return path.expanduser()
    except (RuntimeError, ValueError):
        raise ConfigError(
            f"{setting}: {str(path)!r}: no home folder is known for {path.parts[0]}; give the whole path"
        ) from None


def combine(sources: Sequence[Source]) -> Settings:
    """Settings of all sources, later ones over earlier ones. Raises `ConfigError`: one line for each that is wrong."""
    faults = [_line(source, fault) for source in sources for fault in find_faults(source.settings)]
    if faults:
        raise ConfigError("\n".join(faults))
    merged: dict[str, Any] = {}
    places = dict.fromkeys((leaf.name for leaf in leaves()), DEFAULT)
    in_files: set[str] = set()
    for source in sources:
        given = flatten(source.settings)
        places |= {name: source.place(name) for name in given}
        merged |= given
        in_files = in_files | given.keys() if source.lines else in_files - given.keys()
    settings = Settings(msgspec.convert(nest(merged), Config), places, frozenset(in_files))
    if conflicts := find_conflicts(settings.config):
        raise ConfigError("\n".join(
            f"{settings.where(fault.setting, *fault.beside)}{fault.setting}: {fault.why}" for fault in conflicts
        ))  # fmt: skip
    return settings


def load_settings(given: dict[str, Any]) -> Config:
    """The settings of `read_settings`, without their places."""
    return read_settings(given).config


def read_settings(given: dict[str, Any]) -> Settings:
    """The settings in a connector's JSON: `config` is a TOML file, the keys beside it go before what stands there.

    Paths may be `pathlib`'s. Raises `ConfigError`: one line for each setting that is wrong.
    """
    given = _plain(given)
    beside = {key: value for key, value in given.items() if key != "config"}
    sources = [Source("", beside)]
    if "config" in given:
        if not isinstance(given["config"], str):
            raise ConfigError(f"config: expected the path of a TOML file, got {given['config']!r}")
        sources.insert(0, read_toml(Path(given["config"])))
    return combine(sources)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= flatten(cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Groups of settings; the inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *groups, last = name.split(".")
        at = nested
        for group in groups:
            at = at.setdefault(group, {})
        at[last] = value
    return nested


def _plain(value: Any) -> Any:
    """The same with every path of `pathlib` as text."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast("list[Any]", value)]
    return str(value) if isinstance(value, PurePath) else value


def _line(source: Source, fault: Fault) -> str:
    where = f"{source.place(fault.setting)}: " if source.lines else ""
    return f"{where}{fault.setting}: {fault.why}"


def _find_lines(text: str) -> dict[str, int]:
    """The line of each table and key, by dotted name; what stands in an inline table is found by that table's."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = _bare(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            name = _bare(key[1])
            lines.setdefault(f"{table}.{name}" if table else name, number)
    return lines


def _bare(name: str) -> str:
    return re.sub(r"[\s\"']", "", name)
