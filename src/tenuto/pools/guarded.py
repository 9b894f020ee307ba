"""A policy of others whose mistakes are one line that names it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from tenuto.errors import ConfigError, InvariantError, TenutoError
from tenuto.pools.policies import Policy, Slots, Where, make_policy
from tenuto.tokens import BlockKey


def guarded_policy(name: str, setting: str) -> Policy:
    """A new policy, as `make_policy` gives it; what one of others raises is an `InvariantError` that names it.

    Raises `ConfigError` also for what its module or its `__init__` raises.
    """
    try:
        policy = make_policy(name, setting)
    except TenutoError:
        raise
    except Exception as error:
        raise ConfigError(f"{setting}: {name} can't be made: {_in_a_line(error)}; mend it") from error
    if ":" not in name:
        return policy
    return type(name, (_Guarded,), {})(policy)  # whoever names it by its type says what the user wrote


class _Guarded:
    """Asks a policy of others; see `Policy`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def grow(self, n_slots: int) -> None:
        self._ask("grow", n_slots)

    def cached(self, slots: Slots, keys: Sequence[BlockKey], where: Where) -> None:
        self._ask("cached", slots, keys, where)

    def leased(self, slots: Slots) -> None:
        self._ask("leased", slots)

    def forgotten(self, slots: Slots) -> None:
        self._ask("forgotten", slots)

    def evict(self, n: int) -> list[int]:
        victims = self._ask("evict", n)
        try:
            return np.array(list(map(index, victims)), np.int32).tolist()
        except (TypeError, OverflowError):
            said = f"{type(self).__name__}: evict gave no list of slots, but {victims!r:.100}"
            raise InvariantError(" ".join(said.split())) from None

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._policy, method)(*arguments)
        except Exception as error:
            raise InvariantError(f"{type(self).__name__}: {method} raised {_in_a_line(error)}") from error


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
