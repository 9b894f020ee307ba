"""Every policy keeps the contract; what each does beyond it."""

import gc
from random import Random

import pytest

from tenuto.errors import ConfigError
from tenuto.pools import POLICIES, Pool, make_policy
from tenuto.pools.policies import Priority
from tenuto.pools.policies.runs import Run
from tenuto.testing.blocks import make_keys
from tenuto.testing.policy_contract import PolicyContract

pytestmark = pytest.mark.unit


@pytest.mark.contract
class TestContract(PolicyContract):
    @pytest.fixture(autouse=True, params=sorted(POLICIES))
    def _choose(self, request):
        self.name = request.param

    def make_policy(self):
        return make_policy(self.name, "policy")


def replayed(policy, requests, n_slots=12):
    """A pool that serves these chains of keys one after the other; after each, what it holds."""
    pool = Pool("test", n_slots, policy)
    for keys in requests:
        found = pool.match([key.hash for key in keys])
        missing = keys[len(found) :]
        answer = pool.allocate(len(missing))
        found.release()
        pool.apply(answer.lease, missing)
        pool.register(answer.lease).lease.release()
        pool.check()
        yield pool


def random_requests(seed, n):
    """Chains that share beginnings, of at most six blocks."""
    random = Random(seed)
    chains = [make_keys(6, seed=seed) for seed in range(6)]
    return [random.choice(chains)[: random.randrange(1, 7)] for _ in range(n)]


@pytest.mark.parametrize("name", ["default", "lineage", "priority"])
@pytest.mark.parametrize("seed", range(5))
def test_no_chain_is_ever_cut_in_its_middle(name, seed):
    chains = [[key.hash for key in make_keys(6, seed=seed)] for seed in range(6)]
    for pool in replayed(make_policy(name, "policy"), random_requests(seed, 300)):
        for chain in chains:
            held = [block in pool for block in chain]
            assert held == sorted(held, reverse=True)


def test_a_parent_that_was_used_long_ago_outlives_its_child():
    pool = Pool("test", 4, make_policy("lineage", "policy"))
    long, other = make_keys(3), make_keys(1, seed=1)
    for keys in (long, other):
        list(replayed_in(pool, keys))
    pool.match([long[2].hash]).release()  # the end alone is used
    with pool.allocate(1).lease:
        assert other[0].hash not in pool
    assert all(key.hash in pool for key in long)


def replayed_in(pool, keys):
    answer = pool.allocate(len(keys))
    pool.apply(answer.lease, keys)
    pool.register(answer.lease).lease.release()
    yield pool


def test_low_priorities_go_first_and_what_stands_behind_them_too():
    policy = Priority(threshold=10)
    pool = Pool("test", 6, policy)
    low, high = make_keys(3), make_keys(3, seed=1)
    policy.prefer([low[1].hash], 5)
    policy.prefer([key.hash for key in high], 90)
    for keys in (high, low):
        list(replayed_in(pool, keys))
    with pool.allocate(2).lease:
        assert [key.hash in pool for key in low] == [True, False, False]
    with pytest.raises(ValueError, match="a priority of 101; give 0 to 100"):
        policy.prefer([], 101)


@pytest.mark.parametrize("name", ["s3-fifo", "tinylfu", "slru", "default"])
def test_a_scan_does_not_push_out_what_is_used_again_and_again(name):
    scans = [[key] for seed in range(10, 400) for key in make_keys(1, seed=seed)]
    hot = make_keys(3)
    requests = [request for scan in scans for request in (scan, hot)]
    n_kept = sum(all(key.hash in pool for key in hot) for pool in replayed(make_policy(name, "policy"), requests))
    assert n_kept > 0.9 * len(requests)


def test_a_policy_that_is_not_there_is_said_with_the_choices():
    with pytest.raises(ConfigError, match=r"tiers\.host\.policy: no policy is named 'fifo'; give one of default, lru"):
        make_policy("fifo", "tiers.host.policy")


def test_a_block_that_comes_back_after_it_was_evicted_is_protected_by_slru():
    pool = Pool("test", 4, make_policy("slru", "policy"))
    hot, scan = make_keys(1), [make_keys(4, seed=seed) for seed in range(1, 4)]
    for keys in (hot, scan[0], hot, scan[1][:3], scan[2][:3]):
        list(replayed_in(pool, keys))
    assert hot[0].hash in pool


@pytest.mark.parametrize("n_parts", [1, 2, 32])
def test_what_is_restored_goes_the_oldest_first_and_no_chain_is_cut(n_parts):
    chains = [make_keys(32, seed=seed) for seed in range(4)]
    step = 32 // n_parts
    parts = [chain[at : at + step] for at in range(0, 32, step) for chain in chains]
    pool = Pool("test", 128, make_policy("default", "policy"))
    pool.restore(list(enumerate(key for part in parts for key in part)))
    for _ in range(64):
        with pool.allocate(len(pool) - pool.statistics().cached + 1).lease:
            for chain in chains:
                held = [key.hash in pool for key in chain]
                assert held == sorted(held, reverse=True)


@pytest.mark.parametrize("n_slots", [1 << 12, 1 << 16])
def test_a_long_prompt_that_comes_in_parts_stays_whole_while_it_grows(n_slots):
    pool = Pool("test", n_slots, make_policy("default", "policy"))
    old = make_keys(n_slots)
    prompts = [make_keys(1024, seed=seed) for seed in (1, 2)]
    list(replayed_in(pool, old))
    for at in range(0, 1024, 64):
        for prompt in prompts:
            list(replayed_in(pool, prompt[at : at + 64]))
    pool.check()
    for chain in (old, *prompts):
        held = [key.hash in pool for key in chain]
        assert held == sorted(held, reverse=True)
    assert all(key.hash in pool for prompt in prompts for key in prompt)


def put(pool, keys):
    answer = pool.allocate(len(keys))
    pool.apply(answer.lease, keys)
    pool.register(answer.lease).lease.release()
    return answer.evicted


def test_a_block_that_comes_back_alone_is_the_parent_of_what_was_left_of_its_chain():
    pool = Pool("test", 4, make_policy("default", "x"))
    b1, b2, b3, b4 = chain = make_keys(4)
    (other,) = make_keys(1, seed=9)
    put(pool, chain)
    pool.invalidate([b1.hash])
    put(pool, [other])
    assert put(pool, [b1]) == [b4]
    pool.invalidate([b3.hash])
    for keys in ([other], [b1]):
        pool.match([key.hash for key in keys]).release()
    with pool.match([b1.hash, b2.hash]):
        assert put(pool, [b3, b4]) == [other]
    pool.match([key.hash for key in chain[:3]]).release()
    pool.match([b1.hash, b2.hash]).release()
    assert put(pool, make_keys(3, seed=10)) == [b4, b3, b2]


def test_the_first_eviction_does_not_wait_until_all_that_is_there_has_grown_older():
    """Of many short chains that came at once."""
    policy = make_policy("default", "x")
    pool = Pool("test", 20_000, policy)
    for seed in range(2_000):
        put(pool, make_keys(10, seed=seed))
    moved = []
    plain = policy._waiting.grow_older

    def grow_older(now, young):
        before = {id(entry[2]): number for number, queue in policy._waiting._queues.items() for entry in queue}
        is_done = plain(now, young)
        after = {id(entry[2]): number for number, queue in policy._waiting._queues.items() for entry in queue}
        moved.append(sum(before[run] != number for run, number in after.items()))
        return is_done

    policy._waiting.grow_older = grow_older
    for seed in range(5):
        put(pool, make_keys(10, seed=10_000 + seed))
    assert moved
    assert max(moved) < 1_000


def test_what_a_chain_has_lost_at_its_beginning_is_not_kept():
    """A window that slides over one long text."""
    pool = Pool("test", 64, make_policy("default", "x"))
    keys = make_keys(3_000)
    for at, key in enumerate(keys):
        if at >= 32:
            pool.invalidate([keys[at - 32].hash])
        put(pool, [key])
    gc.collect()
    assert sum(isinstance(thing, Run) for thing in gc.get_objects()) < 1_000
