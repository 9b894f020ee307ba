"""Short ways to common situations."""

from collections.abc import Sequence

from tenuto.pools import Allocated, Lease, Pool, WritableLease
from tenuto.tokens import BlockKey


def allocate(pool: Pool, n: int) -> WritableLease:
    answer = pool.allocate(n)
    assert isinstance(answer, Allocated)
    return answer.lease


def fill(pool: Pool, keys: Sequence[BlockKey]) -> WritableLease:
    """A lease on slots that are COMPLETE and not registered."""
    lease = allocate(pool, len(keys))
    pool.apply(lease, keys)
    return lease


def hold(pool: Pool, keys: Sequence[BlockKey]) -> Lease:
    """Registered and leased."""
    return pool.register(fill(pool, keys)).lease


def cache(pool: Pool, keys: Sequence[BlockKey]) -> None:
    """Registered and released."""
    hold(pool, keys).release()


def hashes(keys: Sequence[BlockKey]) -> list[bytes]:
    return [key.hash for key in keys]


def evicted(pool: Pool, n: int) -> list[BlockKey]:
    """Evict exactly `n` blocks by taking every free slot and `n` more; the slots are given back."""
    answer = pool.allocate(pool.statistics().free + n)
    assert isinstance(answer, Allocated)
    answer.lease.discard()
    return answer.evicted
