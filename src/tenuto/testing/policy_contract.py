"""What every `Policy` promises a pool.

A policy of yours is tested by pytest so::

    from tenuto.testing.policy_contract import PolicyContract


    class TestMine(PolicyContract):
        def make_policy(self):
            return MyPolicy()
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tenuto.pools import Policy
from tenuto.testing.blocks import make_keys

_KEYS = make_keys(32)


class PolicyContract:
    """Subclass it, give `make_policy`, and pytest runs the rest."""

    def make_policy(self) -> Policy:
        """A new policy that knows no slots yet."""
        raise NotImplementedError

    @pytest.fixture
    def policy(self) -> Policy:
        """A policy of 8 slots, none of them evictable."""
        policy = self.make_policy()
        policy.grow(8)
        return policy

    def test_nothing_can_be_evicted_at_first(self, policy: Policy) -> None:
        """Slots that were never cached have nothing to lose."""
        assert policy.evict(3) == []

    def test_evicts_as_many_as_asked_for_while_there_are_that_many(self, policy: Policy) -> None:
        """A pool counts on it: it has promised that many slots."""
        _cache(policy, [0, 1, 2, 3, 4])
        assert len(policy.evict(2)) == 2
        assert len(policy.evict(2)) == 2
        assert len(policy.evict(2)) == 1
        assert policy.evict(2) == []

    def test_victims_are_cached_slots_each_once(self, policy: Policy) -> None:
        """One slot is not two."""
        _cache(policy, [6, 1, 4])
        assert sorted(policy.evict(3)) == [1, 4, 6]

    def test_a_leased_slot_is_never_a_victim(self, policy: Policy) -> None:
        """Eviction waits for leases."""
        _cache(policy, [0, 1, 2, 3])
        policy.leased(_array([1, 2]))
        assert sorted(policy.evict(4)) == [0, 3]

    def test_a_slot_released_again_can_be_evicted_again(self, policy: Policy) -> None:
        """A lease is no more than a pause."""
        _cache(policy, [0, 1])
        policy.leased(_array([0, 1]))
        _cache(policy, [1, 0])
        assert sorted(policy.evict(8)) == [0, 1]

    def test_an_evicted_slot_counts_as_leased(self, policy: Policy) -> None:
        """It is no victim again before it is cached again, even with another block."""
        _cache(policy, [5])
        assert policy.evict(1) == [5]
        assert policy.evict(1) == []
        policy.cached(_array([5]), [_KEYS[20]], {_KEYS[20].hash: 5})
        assert policy.evict(1) == [5]

    def test_empty_batches_mean_nothing(self, policy: Policy) -> None:
        """Leases of no slots come and go."""
        _cache(policy, [])
        policy.leased(_array([]))
        assert policy.evict(0) == []
        _cache(policy, [2])
        assert policy.evict(0) == []
        assert policy.evict(1) == [2]

    def test_growing_keeps_what_is_cached(self, policy: Policy) -> None:
        """Old slots stay victims, new ones are none yet."""
        _cache(policy, [0, 7])
        policy.grow(32)
        _cache(policy, [30])
        assert sorted(policy.evict(9)) == [0, 7, 30]

    @pytest.mark.parametrize("seed", range(8))
    def test_keeps_these_promises_through_many_steps(self, seed: int) -> None:
        """Against a set that says which slots can be evicted."""
        random, policy = Random(seed), self.make_policy()
        policy.grow(32)
        evictable: set[int] = set()
        for _ in range(1500):
            slots = random.sample(range(32), random.randrange(9))
            action = random.randrange(3)
            if action == 0:
                fresh = [slot for slot in slots if slot not in evictable]
                _cache(policy, fresh)
                evictable |= set(fresh)
            elif action == 1:
                idle = [slot for slot in slots if slot in evictable]
                policy.leased(_array(idle))
                evictable -= set(idle)
            else:
                victims = policy.evict(len(slots))
                assert len(victims) == len(set(victims)) == min(len(slots), len(evictable))
                assert set(victims) <= evictable
                evictable -= set(victims)


def _array(slots: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(slots, np.int32)


def _cache(policy: Policy, slots: list[int]) -> None:
    keys = [_KEYS[slot] for slot in slots]
    policy.cached(_array(slots), keys, {key.hash: slot for key, slot in zip(keys, slots, strict=True)})
