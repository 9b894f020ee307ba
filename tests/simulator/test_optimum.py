"""No policy beats the optimum, and one that knows the future reaches it."""

from itertools import combinations
from random import Random

import pytest

from tenuto.pools import POLICIES
from tenuto.simulator import Request, Tiers, best_hits, optimal_hits, simulate
from tenuto.tokens import BlockHash

pytestmark = pytest.mark.unit


def tiny_trace(seed: int, n_requests: int = 7) -> list[list[BlockHash]]:
    """Requests of chains in a small tree of blocks."""
    random, requests = Random(seed), []
    for _ in range(n_requests):
        path = ""
        for _ in range(random.randrange(1, 4)):
            path += random.choice("ab")
        requests.append([BlockHash(path[:n].encode().ljust(16, b".")) for n in range(1, len(path) + 1)])
    return requests


def best_by_trying_all(requests: list[list[BlockHash]], n_slots: int) -> int:
    """Any cache: after each request it holds any blocks that it held or was given, as many as fit."""
    reached = {frozenset(): 0}
    for blocks in requests:
        after = {}
        for held, hits in reached.items():
            found = next((n for n, block in enumerate(blocks) if block not in held), len(blocks))
            there = held | set(blocks)
            for n in range(min(n_slots, len(there)) + 1):
                for kept in combinations(sorted(there), n):
                    key = frozenset(kept)
                    after[key] = max(after.get(key, -1), hits + found)
        reached = after
    return max(reached.values())


@pytest.mark.parametrize("n_slots", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_trying_everything_finds(seed, n_slots):
    requests = tiny_trace(seed)
    assert optimal_hits(requests, n_slots) == best_by_trying_all(requests, n_slots)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("n_slots", [2, 4, 6])
def test_no_policy_has_more_hits(policy, n_slots):
    for seed in range(4):
        requests = tiny_trace(seed, 40)
        outcome = simulate([Request(0.0, list(blocks)) for blocks in requests], Tiers(n_slots, policy))
        assert sum(outcome.n_hits.values()) <= optimal_hits(requests, n_slots)


def test_a_cache_with_room_for_all_misses_each_block_once():
    requests = tiny_trace(3, 60)
    n_different = len({block for blocks in requests for block in blocks})
    assert optimal_hits(requests, 100) == sum(map(len, requests)) - n_different


def events(seed: int) -> list[Request]:
    """Asks for ends of chains, and keeps of parts of them, in any order."""
    random, made = Random(seed), []
    for blocks in tiny_trace(seed, 9):
        if random.random() < 0.5:
            made.append(Request(0.0, blocks, start=random.randrange(len(blocks)), kept=range(0)))
        else:
            made.append(Request(0.0, blocks, start=None, kept=range(random.randrange(len(blocks)), len(blocks))))
    return made


@pytest.mark.parametrize("n_slots", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_with_what_is_kept_at_other_times_nothing_has_more_hits(seed, n_slots):
    requests = events(seed)
    reached = {frozenset(): 0}
    for request in requests:
        after = {}
        for held, hits in reached.items():
            asked = request.asked
            found = next((n for n, block in enumerate(asked) if block not in held), len(asked))
            there = held | {request.hashes[i] for i in request.kept}
            for n in range(min(n_slots, len(there)) + 1):
                for kept in combinations(sorted(there), n):
                    after[frozenset(kept)] = max(after.get(frozenset(kept), -1), hits + found)
        reached = after
    best = max(reached.values())
    assert best <= best_hits(requests, n_slots) <= sum(len(request.asked) for request in requests)
    assert best_hits(requests, n_slots) <= best + 3  # the bound is near
    assert best_hits(requests, 99) == best_hits(requests, 100)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_policy_has_more_hits_then_either(policy):
    for seed in range(20):
        requests = events(seed)
        outcome = simulate(requests, Tiers(3, policy))
        assert sum(outcome.n_hits.values()) <= best_hits(requests, 3)
