"""A pool against a plain dictionary, through any sequence of steps."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tenuto.pools import LRU, Allocated, Full, Pool
from tenuto.testing.blocks import make_keys

pytestmark = pytest.mark.unit

KEYS = make_keys(10)
BY_HASH = {key.hash: key for key in KEYS}

# A run of blocks of the chain, and some number to choose one of several leases by.
runs = st.tuples(st.integers(0, 9), st.integers(1, 5)).map(lambda run: KEYS[run[0] : run[0] + run[1]])
numbers = st.integers(0, 99)


class PoolModel(RuleBasedStateMachine):
    """`place` says where each registered block is, `order` which cached block was released longest ago."""

    def __init__(self):
        super().__init__()
        self.pool = Pool("model", 6, LRU())
        self.place: dict[bytes, int] = {}
        self.order: list[bytes] = []
        self.filling: list[tuple[object, list]] = []  # (lease, keys)
        self.held: list[tuple[object, list[tuple[bytes, int]]]] = []  # (lease, where its blocks are)
        self.doomed: set[int] = set()

    # -- the model ----------------------------------------------------------------------------------

    def holders(self, slot: int) -> int:
        return sum(slot in [at for _, at in places] for _, places in self.held)

    def leased_slots(self) -> set[int]:
        filling = {slot for lease, _ in self.filling for slot in lease.slots}
        return filling | {slot for _, places in self.held for _, slot in places}

    def n_free(self) -> int:
        return len(self.pool) - len(self.leased_slots()) - len(self.order)

    def hold(self, lease, places):
        if len(lease):
            self.held.append((lease, places))
        for block, _ in places:
            if block in self.order:
                self.order.remove(block)

    def unhold(self, places):
        for block, slot in reversed(places):  # the tail can go first
            if self.holders(slot):
                continue
            if slot in self.doomed:
                self.doomed.remove(slot)
            elif self.place.get(block) == slot:
                self.order.append(block)

    # -- steps --------------------------------------------------------------------------------------

    @rule(keys=runs, evict=st.booleans())
    def allocate(self, keys, evict):
        free = self.n_free()
        available = free + (len(self.order) if evict else 0)
        answer = self.pool.allocate(len(keys), evict=evict)
        if len(keys) > available:
            assert answer == Full(available)
            return
        assert isinstance(answer, Allocated)
        n = max(len(keys) - free, 0)
        gone, self.order = self.order[:n], self.order[n:]
        assert [key.hash for key in answer.evicted] == gone
        freed = {self.place.pop(block) for block in gone}
        assert len(set(answer.lease.slots)) == len(keys)
        assert freed <= set(answer.lease.slots)
        assert not set(answer.lease.slots) & self.leased_slots()
        self.pool.apply(answer.lease, keys)
        self.filling.append((answer.lease, keys))

    @precondition(lambda self: self.filling)
    @rule(number=numbers, failed=st.sets(st.integers(0, 4)))
    def register(self, number, failed):
        lease, keys = self.filling.pop(number % len(self.filling))
        slots = lease.slots
        registered = self.pool.register(lease, {index for index in failed if index < len(keys)})
        new, places = [], []
        for index, (key, slot) in enumerate(zip(keys, slots, strict=True)):
            if index not in failed:
                if key.hash not in self.place:
                    self.place[key.hash] = slot
                    new.append(key)
                places.append((key.hash, self.place[key.hash]))
        assert registered.new == new
        assert registered.lease.slots == [slot for _, slot in places]
        self.hold(registered.lease, places)

    @precondition(lambda self: self.filling)
    @rule(number=numbers)
    def discard(self, number):
        lease, _ = self.filling.pop(number % len(self.filling))
        lease.discard()

    @rule(keys=runs)
    def match(self, keys):
        places = []
        for key in keys:
            if key.hash not in self.place:
                break
            places.append((key.hash, self.place[key.hash]))
        lease = self.pool.match([key.hash for key in keys])
        assert lease.slots == [slot for _, slot in places]
        assert self.pool.keys(lease) == [BY_HASH[block] for block, _ in places]
        self.hold(lease, places)

    @precondition(lambda self: self.held)
    @rule(number=numbers)
    def release(self, number):
        lease, places = self.held.pop(number % len(self.held))
        lease.release()
        self.unhold(places)

    @rule(keys=runs)
    def invalidate(self, keys):
        hashes = [key.hash for key in keys]
        assert self.pool.invalidate(hashes) == [key for key in keys if key.hash in self.place]
        self.forget(hashes)

    @rule()
    def reset(self):
        assert {key.hash for key in self.pool.reset()} == set(self.place)
        self.forget(list(self.place))

    def forget(self, hashes):
        for block in hashes:
            slot = self.place.pop(block, None)
            if slot is None:
                continue
            if block in self.order:
                self.order.remove(block)
            else:
                self.doomed.add(slot)

    @precondition(lambda self: len(self.pool) < 12)
    @rule(more=st.integers(0, 2))
    def grow(self, more):
        self.pool.grow(len(self.pool) + more)

    @precondition(lambda self: self.n_free())
    @rule(key=st.sampled_from(KEYS))
    def restore(self, key):
        """Into any free slot; the model looks which there are."""
        slot = min(set(range(len(self.pool))) - self.leased_slots() - set(self.place.values()))
        self.pool.restore([(slot, key)])
        if key.hash not in self.place:
            self.place[key.hash] = slot
            self.order.append(key.hash)

    # -- what must always hold ----------------------------------------------------------------------

    @invariant()
    def books_balance(self):
        self.pool.check()
        statistics = self.pool.statistics()
        assert (statistics.free, statistics.cached) == (self.n_free(), len(self.order))
        assert statistics.registered == len(self.place)
        assert {block for block in BY_HASH if block in self.pool} == set(self.place)

    def teardown(self):
        for lease, _ in self.filling:
            lease.discard()
        for lease, _ in self.held:
            lease.release()
        self.pool.check()
        assert self.pool.statistics().leased == 0


TestPoolModel = PoolModel.TestCase
TestPoolModel.settings = settings(stateful_step_count=40)
