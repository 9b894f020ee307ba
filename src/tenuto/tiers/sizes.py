"""How many blocks host memory and the way to disk have room for, by the settings."""

from __future__ import annotations

from tenuto.config import Config, in_units, parse_size
from tenuto.errors import ConfigError

N_BOUNCE = 4
"""Host slots kept for loads that go straight from disk to the device."""


def host_slots(config: Config, extent_bytes: int, remedy: str = "a smaller layout.block_tokens") -> int:
    """Slots of the host pool. Raises `ConfigError` when not even one fits; `remedy`: what makes a block smaller."""
    capacity = config.tiers.host.capacity
    n_bounce = N_BOUNCE if config.tiers.disk.path else 0
    n = parse_size(capacity, "tiers.host.capacity") // extent_bytes - n_bounce
    if n < 1:
        least = in_units((1 + n_bounce) * extent_bytes) + (f" (with a disk: {1 + n_bounce} blocks)" if n_bounce else "")
        raise ConfigError(
            f"tiers.host.capacity: {capacity} has no room for one block of {in_units(extent_bytes)}; "
            f"give at least {least}, or {remedy}"
        )
    return n


def max_writes(config: Config, extent_bytes: int) -> int:
    """Blocks on the way to disk at once: the window, and at most half of the host pool."""
    window = parse_size(config.runtime.write_window, "runtime.write_window")
    return max(1, min(window // extent_bytes, host_slots(config, extent_bytes) // 2))
