"""One pool, many threads."""

import threading
from random import Random

import pytest

from tenuto.pools import Allocated, Pool
from tenuto.testing.blocks import make_keys

pytestmark = pytest.mark.unit

CHAINS = [make_keys(8, seed) for seed in range(6)]


def work(pool: Pool, seed: int, barrier: threading.Barrier, faults: list) -> None:
    """Look up, fill what is missing, invalidate now and then: what an engine's threads do."""
    random = Random(seed)
    barrier.wait()
    try:
        for _ in range(300):
            keys = random.choice(CHAINS)[: random.randrange(1, 9)]
            with pool.match([key.hash for key in keys]) as found:
                assert pool.keys(found) == keys[: len(found)]
                missing = keys[len(found) :]
                answer = pool.allocate(len(missing))
                if isinstance(answer, Allocated):
                    pool.apply(answer.lease, missing)
                    failed = {i for i in range(len(missing)) if random.random() < 0.1}
                    with pool.register(answer.lease, failed).lease as held:
                        pool.keys(held)
            if random.random() < 0.02:
                pool.invalidate([random.choice(keys).hash])
            if random.random() < 0.005:
                pool.reset()
    except BaseException as error:
        faults.append(error)
        raise


def test_books_balance_after_many_threads_have_used_a_pool():
    pool, faults = Pool("shared", 20), []
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(pool, seed, barrier, faults)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            pool.check()
            thread.join(0.01)
    assert faults == []
    pool.check()
    assert pool.statistics().leased == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_leases_dropped_by_other_threads_come_back():
    pool = Pool("shared", 32)

    def drop(seed: int) -> None:
        for _ in range(50):
            answer = pool.allocate(2)
            if isinstance(answer, Allocated):
                pool.apply(answer.lease, CHAINS[seed][:2])
                del answer  # unreleased

    threads = [threading.Thread(target=drop, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.statistics().free == 32
    pool.check()
