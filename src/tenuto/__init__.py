"""tenuto: keys and values of prompts already computed, kept in tiers and given back.

Importing this package loads nothing else and changes nothing. `open_cache` and what goes with it are those of
``tenuto.library``, the block manager without an engine, and the errors those of ``tenuto.errors``; see
``tenuto.manager`` for the core and ``tenuto.connectors`` for the engines it serves.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenuto.errors import ConfigError, FullError, InvariantError, LeaseError, StateError, TenutoError
    from tenuto.library import Blocks, KVCache, Layout, WritableBlocks, open_cache
    from tenuto.pools.policies import Priority

__version__ = "0.1.0"
"""Of this package."""

__all__ = [
    "Blocks",
    "ConfigError",
    "FullError",
    "InvariantError",
    "KVCache",
    "Layout",
    "LeaseError",
    "Priority",
    "StateError",
    "TenutoError",
    "WritableBlocks",
    "__version__",
    "open_cache",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tenuto' has no attribute {name!r}")
    from tenuto import errors, library
    from tenuto.pools import policies

    return next(getattr(module, name) for module in (library, errors, policies) if hasattr(module, name))
