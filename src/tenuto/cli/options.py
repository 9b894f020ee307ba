"""Options of the command line, one for each setting, and what they say."""

from __future__ import annotations

import argparse
import ast
import inspect
from pathlib import Path
from typing import Any

import msgspec

from tenuto import config
from tenuto.config import Leaf, leaves
from tenuto.errors import ConfigError
from tenuto.plugins import load, why_absent
from tenuto.settings import Settings, Source, nest, read_toml

OPTION = "option"
"""The place of a setting that was given as an option."""

SHORT = {
    "tiers.host.capacity": "--host-memory",
    "tiers.disk.path": "--disk",
    "tiers.disk.capacity": "--disk-capacity",
    "runtime.record_file": "--record",
}


def add_setting_options(parser: argparse.ArgumentParser) -> None:
    """Add `--config FILE`, an option for every setting, and short forms of the usual ones."""
    group = parser.add_argument_group("settings", "An option goes before what stands in the file.")
    group.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings")
    says = _descriptions()
    for leaf in leaves():
        short = [SHORT[leaf.name]] if leaf.name in SHORT else []
        default = f" (default: {leaf.default})" if leaf.default not in ("", ()) else ""
        group.add_argument(
            *short, f"--{leaf.name}", dest=leaf.name, metavar=leaf.name.rpartition(".")[2].upper(),
            help=(says[leaf.name] + default).replace("%", "%%"),
        )  # fmt: skip


def read_sources(args: argparse.Namespace) -> list[Source]:
    """What was given: the file's settings, then the options. Raises `ConfigError` for a file that can't be read."""
    sources = [read_toml(args.config)] if args.config is not None else []
    texts = {leaf: getattr(args, leaf.name) for leaf in leaves()}
    given = {leaf.name: _from_text(leaf, text) for leaf, text in texts.items() if text is not None}
    return [*sources, Source(OPTION, nest(given))]


def check_plugins(settings: Settings) -> list[str]:
    """Look at the classes of others that the settings name, and at the URLs; a warning for each that is not here.

    Raises `ConfigError` for one that is here and of no use.
    """
    tiers = settings.config.tiers
    named = {
        "tiers.host.policy": (tiers.host.policy, _load_policy),
        "tiers.disk.policy": (tiers.disk.policy, _load_policy),
        "tiers.disk.store": (tiers.disk.store, _load_store),
    }
    warnings: list[str] = []
    for name, (spec, look) in named.items():
        if ":" not in spec:
            continue
        if why := _why_absent(spec, settings.where(name) + name):
            warnings.append(
                f"{settings.where(name)}{name}: {spec.partition(':')[0]!r} can't be imported here ({why}): not checked;"
                " the Python that runs vLLM must find it, installed or on PYTHONPATH"
            )
            continue
        try:
            look(spec, name)
        except ConfigError as error:
            raise ConfigError(f"{settings.where(name)}{error}") from None
    _look_at_urls(settings)
    return warnings


def _why_absent(spec: str, setting: str) -> str:
    try:
        return why_absent(spec)
    except Exception as error:
        said = f"raises {type(error).__name__} when it is imported ({' '.join(str(error).split())}); mend it"
        raise ConfigError(f"{setting}: {spec.partition(':')[0]!r} {said}") from error


# What these import is half of a command's start.


def _look_at_urls(settings: Settings) -> None:
    from tenuto.events.ways.address import parse_address, parse_router_address

    events = settings.config.events
    for name, parse in (
        ("url", parse_address), ("router_url", parse_router_address), ("engine_url", parse_router_address),
    ):  # fmt: skip
        url = getattr(events, name)
        try:
            if url and (name, url) != ("engine_url", "auto"):
                parse(url, f"events.{name}")
        except ConfigError as error:
            raise ConfigError(f"{settings.where(f'events.{name}')}{error}") from None


def _load_policy(spec: str, setting: str) -> None:
    from tenuto.pools import Policy

    load(spec, setting, Policy, ())


def _load_store(spec: str, _: str) -> None:
    from tenuto.tiers.disk.opening import load_store

    load_store(spec)


def _from_text(leaf: Leaf, text: str) -> Any:
    """The value that `text` stands for; the text itself where it is none of the setting's type."""
    if leaf.type == config.Folders:
        return [part.strip() for part in text.split(",")] if text else []
    try:
        return msgspec.convert(text, leaf.base, strict=False)
    except msgspec.ValidationError:
        return text


def _descriptions() -> dict[str, str]:
    """What the settings' own docstrings say, by dotted name. Python drops them: they are read from the source."""
    says: dict[str, dict[str, str]] = {}
    for struct in ast.parse(inspect.getsource(config)).body:
        if isinstance(struct, ast.ClassDef):
            pairs = zip(struct.body, struct.body[1:], strict=False)
            says[struct.name] = {
                field.target.id: doc.value.value
                for field, doc in pairs
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(doc, ast.Expr)
                and isinstance(doc.value, ast.Constant)
                and isinstance(doc.value.value, str)
            }
    return {leaf.name: says[leaf.group].get(leaf.name.rpartition(".")[2], "") for leaf in leaves()}
