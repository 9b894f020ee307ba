"""The settings of a cache without an engine: those that do something there."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import reduce
from typing import Any

from tenuto.config import Config, leaves
from tenuto.errors import ConfigError
from tenuto.memory.blocklayout import Layout
from tenuto.plugins import lacking
from tenuto.pools import LRU, Policy
from tenuto.pools.guarded import guarded_policy
from tenuto.settings import flatten, nest, read_settings

ENGINES_ALONE = (
    "model.weights",
    "runtime.cache_generated",
    "runtime.onboard",
    "runtime.layers_ahead",
    "runtime.save",
    "runtime.cost_gate",
    "runtime.metrics_port",
    "runtime.trace_file",
    "runtime.record_file",
    "events.router_url",
    "events.router_schema",
    "events.engine_url",
)
"""Settings that say nothing without an engine."""


_POOLS = ("device", "host", "disk")


def library_config(settings: Mapping[str, Any], layout: Layout) -> Config:
    """Nested or dotted settings. Raises `ConfigError`: a line for each that is wrong, or does nothing here."""
    if not isinstance(settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f'settings: {settings!r} is no dict; give one, as {{"tiers.host.capacity": "1 GiB"}}')
    given = flatten(settings)
    read = read_settings(nest(given))
    config = read.config
    faults = [
        f"{read.where(leaf.name)}{leaf.name}: does nothing without an engine; leave it out"
        for leaf in leaves()
        if leaf.name in ENGINES_ALONE and (leaf.name in given or _value(config, leaf.name) != leaf.default)
    ]
    if faults:
        raise ConfigError("\n".join(faults))
    if config.layout.block_tokens not in (0, layout.page_tokens):
        raise ConfigError(
            f"{read.where('layout.block_tokens')}layout.block_tokens: {config.layout.block_tokens} is not the "
            f"layout's page_tokens {layout.page_tokens}; leave it out"
        )
    return config


def choose_policies(given: Mapping[str, str | Policy], config: Config) -> dict[str, Policy]:
    """A policy for "device", "host" and "disk": what is given, else as the settings say, on the device LRU.

    Raises `ConfigError`, one line, for what is no policy, or is given to two.
    """
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f'policies: {given!r} is no dict; give one, as {{"device": "lru"}}')
    if unknown := [name for name in given if name not in _POOLS]:
        raise ConfigError(f"policies: {unknown[0]!r} is not known; give {', '.join(map(repr, _POOLS))}")
    if "disk" in given and not config.tiers.disk.path:
        raise ConfigError(
            'policies: there is no disk tier without tiers.disk.path; give that folder, or leave "disk" out'
        )
    changed = {leaf.name for leaf in leaves() if _value(config, leaf.name) != leaf.default}
    chosen: dict[str, Policy] = {}
    for name in _POOLS:
        setting = f"tiers.{name}.policy"
        if name in given and setting in changed:
            raise ConfigError(f"policies: that of {name!r} is given by {setting} too; leave one out")
        if name in given:
            found = _policy_of(given[name], f"policies[{name!r}]")
        else:
            found = LRU() if name == "device" else guarded_policy(str(_value(config, setting)), setting)
        if any(found is other for other in chosen.values()):
            raise ConfigError(f"policies: one object is given to {name!r} and another; give each its own")
        chosen[name] = found
    return chosen


def _policy_of(given: str | Policy, where: str) -> Policy:
    if isinstance(given, str):
        return guarded_policy(given, where)
    if inspect.isclass(given) or lacking(given, Policy):
        raise ConfigError(f'{where}: {given!r} is no policy; give an object of one, or a name such as "module:Class"')
    return given


def _value(config: Config, name: str) -> object:
    return reduce(getattr, name.split("."), config)
