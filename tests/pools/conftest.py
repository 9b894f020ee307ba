"""Pools that are checked after each test."""

from collections.abc import Callable, Iterator

import pytest

from tenuto.pools import LRU, Pool


@pytest.fixture
def make_pool() -> Iterator[Callable[..., Pool]]:
    """Makes pools; the books of each must balance at the end of the test."""
    pools: list[Pool] = []

    def make(n_slots: int = 8, name: str = "test") -> Pool:
        pools.append(Pool(name, n_slots, LRU()))
        return pools[-1]

    yield make
    for pool in pools:
        pool.check()


@pytest.fixture
def pool(make_pool: Callable[..., Pool]) -> Pool:
    """Eight slots."""
    return make_pool()
