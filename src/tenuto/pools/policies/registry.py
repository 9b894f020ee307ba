"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable

from tenuto.plugins import make_named
from tenuto.pools.policies.lineage import Lineage
from tenuto.pools.policies.lru import LRU
from tenuto.pools.policies.priority import Priority
from tenuto.pools.policies.protocol import Policy
from tenuto.pools.policies.returns import Returns
from tenuto.pools.policies.s3fifo import S3FIFO
from tenuto.pools.policies.slru import SLRU
from tenuto.pools.policies.tinylfu import TinyLFU

POLICIES: dict[str, Callable[[], Policy]] = {
    "default": Returns,
    "lru": LRU,
    "slru": SLRU,
    "lineage": Lineage,
    "priority": Priority,
    "s3-fifo": S3FIFO,
    "tinylfu": TinyLFU,
}
"""What makes a policy, by its name in settings and options."""


def make_policy(name: str, setting: str) -> Policy:
    """A new policy: of these, or of a class of others, "module:Class", which is made without arguments.

    Raises `ConfigError`; see `plugins.make_named`.
    """
    return make_named("policy", name, setting, POLICIES, Policy)
