"""The settings of a cache without an engine: those that do something there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenuto.config import Config, leaves
from tenuto.errors import ConfigError
from tenuto.memory.blocklayout import Layout
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
)
"""Settings that say nothing without an engine."""


def library_config(settings: Mapping[str, Any], layout: Layout) -> Config:
    """Nested or dotted settings. Raises `ConfigError`: a line for each that is wrong, or does nothing here."""
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


def _value(config: Config, name: str) -> object:
    group, _, field = name.rpartition(".")
    return getattr(getattr(config, group), field)
