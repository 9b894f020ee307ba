"""Hits across groups are those of a brute-force search; groups are filled together or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tenuto.errors import LeaseError, StateError
from tenuto.pools.groups import Group, GroupPools, GroupsFull, Keeps, WritableGroupLease
from tenuto.tokens import HashChain

pytestmark = pytest.mark.unit

DENSE = (Group("full", 9, 2),)
HYBRID = (Group("full", 12, 2), Group("window", 7, 2, Keeps.WINDOW, 6), Group("state", 4, 4, Keeps.STATE))
UNEVEN = (Group("full", 9, 3), Group("window", 9, 2, Keeps.WINDOW, 4), Group("wide", 5, 6, Keeps.WINDOW, 7))
NO_FULL = (Group("one", 6, 2, Keeps.WINDOW, 2), Group("self", 6, 2, Keeps.WINDOW, 1), Group("state", 6, 1, Keeps.STATE))
MODELS = {"dense": DENSE, "hybrid": HYBRID, "uneven": UNEVEN, "no full attention": NO_FULL}

sequences = st.lists(st.integers(0, 1), max_size=4).map(lambda kinds: [kind for kind in kinds for _ in range(6)])


def chains(groups, tokens):
    found = {}
    for group in groups:
        chain = HashChain(group.name.ljust(16).encode(), group.block_tokens)
        chain.append(tokens)
        found[group.name] = chain
    return found


def tokens_needed(group, n_tokens):
    """Positions whose keys and values, or state, the token at position `n_tokens` needs."""
    if group.keeps is Keeps.ALL:
        return range(n_tokens)
    if group.keeps is Keeps.WINDOW:
        return range(max(n_tokens - group.window_tokens + 1, 0), n_tokens)
    return range(max(n_tokens - 1, 0), n_tokens)


def longest(groups, there, hashes, limit):
    """By trying every length from the top."""
    for n_tokens in range(limit, 0, -1):
        if any(n_tokens % group.block_tokens for group in groups):
            continue
        if all(
            hashes[group.name][position // group.block_tokens] in there[group.name]
            for group in groups
            for position in tokens_needed(group, n_tokens)
        ):
            return n_tokens
    return 0


class GroupModel(RuleBasedStateMachine):
    """`there` says which blocks are registered in each group."""

    groups = DENSE

    def __init__(self):
        super().__init__()
        self.pools = GroupPools(self.groups)
        self.there = {group.name: set() for group in self.groups}
        self.filling = []  # (lease, keys by group)
        self.held = []  # (lease, keys by group)

    @rule(tokens=sequences, data=st.data())
    def allocate(self, tokens, data):
        keys = {}
        for name, chain in chains(self.groups, tokens).items():
            n = len(chain.hashes)
            start = data.draw(st.integers(0, n))
            keys[name] = [chain.key(index) for index in range(start, data.draw(st.integers(start, n)))]
        before = self.pools.statistics()
        answer = self.pools.allocate({name: len(found) for name, found in keys.items()})
        short = {name: now.free + now.cached for name, now in before.items() if len(keys[name]) > now.free + now.cached}
        if short:
            assert answer == GroupsFull(short)
            assert self.pools.statistics() == before
            return
        assert isinstance(answer, WritableGroupLease)
        held = {name: {key for _, found in self.held for key in found[name]} for name in keys}
        for name, gone in answer.evicted.items():
            assert not held[name] & set(gone)
            self.there[name] -= {key.hash for key in gone}
        self.pools.apply(answer, keys)
        self.filling.append((answer, keys))

    @precondition(lambda self: self.filling)
    @rule(is_kept=st.booleans())
    def finish(self, is_kept):
        lease, keys = self.filling.pop(0)
        if not is_kept:
            lease.discard()
            return
        registered = self.pools.register(lease)
        for name, found in keys.items():
            assert registered.new[name] == [key for key in found if key.hash not in self.there[name]]
            self.there[name] |= {key.hash for key in found}
        self.held.append((registered, keys))

    @rule(tokens=sequences, cut=st.integers(0, 9) | st.none())
    def match(self, tokens, cut):
        found = chains(self.groups, tokens)
        hashes = {name: chain.hashes for name, chain in found.items()}
        limit = len(tokens) if cut is None else max(len(tokens) - cut, 0)
        hit = self.pools.match(hashes, None if cut is None else limit)
        assert hit.n_tokens == longest(self.groups, self.there, hashes, limit)
        keys = {}
        for group in self.groups:
            name, lease = group.name, hit.leases[group.name]
            first = hit.first[name]
            wanted = {position // group.block_tokens for position in tokens_needed(group, hit.n_tokens)}
            assert set(range(first, first + len(lease))) == wanted
            keys[name] = [found[name].key(index) for index in sorted(wanted)]
            assert self.pools.pools[name].keys(lease) == keys[name]
        self.held.append((hit, keys))

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 9))
    def release(self, number):
        self.held.pop(number % len(self.held))[0].release()

    @rule(tokens=sequences, data=st.data())
    def invalidate(self, tokens, data):
        group = data.draw(st.sampled_from(self.groups))
        hashes = chains(self.groups, tokens)[group.name].hashes[-2:]
        self.pools.pools[group.name].invalidate(hashes)
        self.there[group.name] -= set(hashes)

    @invariant()
    def books_balance(self):
        self.pools.check()
        for name, there in self.there.items():
            assert self.pools.statistics()[name].registered == len(there)

    def teardown(self):
        for lease, _ in [*self.filling, *self.held]:
            lease.__exit__()
        assert all(now.leased == 0 for now in self.pools.statistics().values())


for name, groups in MODELS.items():
    machine = type(f"Model_{name}".replace(" ", "_"), (GroupModel,), {"groups": groups})
    globals()[f"Test_{name}".replace(" ", "_")] = machine.TestCase


def filled(pools, tokens, groups=HYBRID):
    found = chains(groups, tokens)
    lease = pools.allocate({name: len(chain.hashes) for name, chain in found.items()})
    pools.apply(lease, {name: [chain.key(i) for i in range(len(chain.hashes))] for name, chain in found.items()})
    return lease, {name: chain.hashes for name, chain in found.items()}


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 6))
def test_a_window_needs_the_blocks_of_the_tokens_it_sees(window_tokens, block_tokens, n_blocks):
    group = Group("w", 1, block_tokens, Keeps.WINDOW, window_tokens)
    n_tokens = n_blocks * block_tokens
    assert set(group.needed(n_tokens)) == {at // block_tokens for at in tokens_needed(group, n_tokens)}


def test_a_state_lost_in_one_group_shortens_the_hit_to_the_last_one_before_it():
    pools = GroupPools(HYBRID)
    lease, hashes = filled(pools, list(range(12)))
    pools.register(lease).release()
    assert pools.step_tokens == 4
    with pools.match(hashes) as hit:
        assert (hit.n_tokens, hit.first) == (12, {"full": 0, "window": 3, "state": 2})
    pools.pools["state"].invalidate([hashes["state"][2]])
    with pools.match(hashes) as hit:
        assert (hit.n_tokens, hit.first) == (8, {"full": 0, "window": 1, "state": 1})
    pools.pools["window"].invalidate([hashes["window"][3]])
    with pools.match(hashes) as hit:
        assert hit.n_tokens == 4


def test_nothing_is_evicted_where_one_group_has_too_few_slots():
    pools = GroupPools(HYBRID)
    lease, hashes = filled(pools, list(range(12)))
    pools.register(lease).release()
    held = pools.match({**hashes, "full": hashes["full"][:0]})
    with pools.pools["state"].match(hashes["state"]):
        assert pools.allocate({"full": 12, "window": 7, "state": 2}) == GroupsFull({"state": 1})
    held.release()
    with pools.match(hashes) as hit:
        assert hit.n_tokens == 12


def test_groups_are_registered_once_all_of_them_are_complete():
    pools = GroupPools(HYBRID)
    with pools.allocate({"full": 2, "window": 2, "state": 1}) as lease:
        with pytest.raises(StateError, match="RESET"):
            pools.register(lease)
        found = chains(HYBRID, list(range(4)))
        keys = {name: [chain.key(i) for i in range(len(chain.hashes))] for name, chain in found.items()}
        with pytest.raises(StateError, match="state: 0 blocks for 1 slots"):
            pools.apply(lease, keys | {"state": []})
        pools.apply(lease, keys)
        with pytest.raises(StateError, match="COMPLETE"):
            pools.apply(lease, keys)
        registered = pools.register(lease)
    with pytest.raises(LeaseError):
        lease.discard()
    registered.release()
    with pytest.raises(LeaseError):
        registered.release()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Group("w", 4, 2, Keeps.WINDOW),
        lambda: Group("f", 4, 2, Keeps.ALL, 5),
        lambda: Group("f", 4, 0),
        lambda: GroupPools([]),
        lambda: GroupPools([*DENSE, *DENSE]),
    ],
)
def test_what_is_no_group_is_refused(make):
    with pytest.raises(ValueError, match=r"group|window"):
        make()


@pytest.mark.parametrize("max_tokens", [0, -1, -5])
def test_a_hit_of_no_tokens_is_none(max_tokens):
    pools = GroupPools(HYBRID)
    lease, hashes = filled(pools, list(range(12)))
    pools.register(lease).release()
    with pools.match(hashes, max_tokens) as hit:
        assert (hit.n_tokens, set(map(len, hit.leases.values()))) == (0, {0})
