"""Managers that are checked after each test."""

import gc
import warnings
from collections.abc import Callable, Iterator

import pytest

from tests.manager.manager_rig import Rig


@pytest.fixture(autouse=True, scope="module")
def no_garbage_of_others() -> None:
    """What other folders' tests have dropped is collected before anybody is blamed for it."""
    gc.collect()


@pytest.fixture(autouse=True)
def no_lease_is_dropped() -> Iterator[None]:
    """A pool takes dropped leases back, with a warning: here that would hide a leak."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    assert [str(w.message) for w in caught if issubclass(w.category, ResourceWarning)] == []


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    """Makes managers with their worker; at the end everything must land and nothing be leased."""
    rigs: list[Rig] = []

    def make(*args: object, **options: object) -> Rig:
        rigs.append(Rig(*args, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.finish()
        for pool in rig.pools().values():
            assert pool.statistics().leased == 0
