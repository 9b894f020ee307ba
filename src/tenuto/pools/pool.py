"""A pool of slots: free, leased or cached."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import numpy.typing as npt

from tenuto.errors import InvariantError, StateError
from tenuto.pools.chains import in_chains
from tenuto.pools.index import HashIndex
from tenuto.pools.lease import Lease, WritableLease
from tenuto.pools.policies import Policy, Returns, Slots
from tenuto.pools.policies.protocol import hash_of, victims_of
from tenuto.pools.states import TRANSITIONS, SlotState, Trigger
from tenuto.tokens import BlockHash, BlockKey

_STATES = tuple(SlotState)
_NO_BLOCK = BlockKey(BlockHash(b""), BlockHash(b""), BlockHash(b""))


@dataclass(frozen=True, slots=True)
class Allocated:
    """`lease` is yours; `evicted` blocks lost their slots for it."""

    lease: WritableLease
    evicted: list[BlockKey]


@dataclass(frozen=True, slots=True)
class Full:
    """Not that many slots can be had now; `available` can."""

    available: int


@dataclass(frozen=True, slots=True)
class Registered:
    """`lease` holds every block that was registered; `new` are those that were not there before."""

    lease: Lease
    new: list[BlockKey]


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Slot counts now (free + leased + cached = total) and evictions so far."""

    total: int
    free: int
    leased: int
    cached: int
    registered: int
    evictions: int


class Pool:
    """Slots 0 ≤ s < n_slots, each RESET, PARTIAL, COMPLETE or REGISTERED. Thread-safe.

    Methods that take a lease consume it, or say otherwise. They raise `LeaseError` (it is used up) or `StateError`.
    """

    def __init__(self, name: str, n_slots: int = 0, policy: Policy | None = None) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._policy: Policy = policy or Returns()
        self._states: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._leases: npt.NDArray[np.int32] = np.zeros(0, np.int32)  # holders of each slot
        self._doomed: set[int] = set()  # invalidated while leased: reset at the last release
        self._keys: list[BlockKey] = []  # _NO_BLOCK while a slot is RESET or PARTIAL
        self._slots = HashIndex()  # registered and not doomed
        self._free: list[int] = []
        self._n_cached = 0
        self._n_evictions = 0
        self._abandoned: deque[Slots] = deque()
        self.grow(n_slots)

    # -- size ---------------------------------------------------------------------------------------

    def grow(self, n_slots: int) -> None:
        """Have `n_slots` slots from now on; never fewer than before."""
        with self._locked():
            old = len(self._keys)
            if n_slots <= old:
                return
            more = n_slots - old
            self._states = np.concatenate([self._states, np.zeros(more, np.uint8)])
            self._leases = np.concatenate([self._leases, np.zeros(more, np.int32)])
            self._keys += [_NO_BLOCK] * more
            self._free[:0] = range(n_slots - 1, old - 1, -1)  # low numbers are used first
            self._policy.grow(n_slots)
            self._slots.grow(n_slots)

    def restore(self, entries: Iterable[tuple[int, BlockKey]]) -> None:
        """Register blocks known to be in given free slots, oldest first, as a store recovers. Raises `StateError`."""
        with self._locked():
            free = set(self._free)
            found: dict[int, BlockKey] = {}
            for slot, key in entries:
                if slot not in free or slot in found:
                    raise StateError(f"{self.name}: slot {slot} is in use and can't be restored")
                found[slot] = key
            slots: list[int] = []
            for slot, key in found.items():
                if self._slots.setdefault(key.hash, slot) == slot:
                    self._keys[slot] = key
                    slots.append(slot)
            array = np.array(slots, np.int32)
            self._move(array, Trigger.APPLY)
            self._move(array, Trigger.REGISTER)
            self._slots.remember(array, [self._keys[slot] for slot in slots])
            free.difference_update(slots)
            self._free = [slot for slot in self._free if slot in free]
            self._cache(array[::-1][in_chains([self._keys[slot] for slot in reversed(slots)])])

    # -- filling ------------------------------------------------------------------------------------

    def allocate(self, n: int, *, evict: bool = True) -> Allocated | Full:
        """`n` empty slots, evicting cached blocks for them if `evict`."""
        with self._locked():
            available = len(self._free) + (self._n_cached if evict else 0)
            if n > available:
                return Full(available)
            evicted = self._evict(n - len(self._free)) if n > len(self._free) else []
            first = len(self._free) - n
            array = np.array(self._free[first:][::-1], np.int32)
            del self._free[first:]
            self._leases[array] = 1
            return Allocated(WritableLease(self, array), evicted)

    def init(self, lease: WritableLease, index: int) -> None:
        """Slot `index` of the lease starts to be filled token by token. Keeps the lease."""
        with self._locked():
            self._move(lease.borrow(self)[[index]], Trigger.INIT)

    def commit(self, lease: WritableLease, index: int, key: BlockKey) -> None:
        """Slot `index` of the lease is full and is block `key` from now on. Keeps the lease."""
        with self._locked():
            array = lease.borrow(self)[[index]]
            self._move(array, Trigger.COMMIT)
            self._keys[int(array[0])] = key

    def apply(self, lease: WritableLease, keys: Sequence[BlockKey]) -> None:
        """The empty slots of the lease are for whole blocks `keys`, in order. Keeps the lease."""
        with self._locked():
            array = lease.borrow(self)
            if len(keys) != len(array):
                raise StateError(f"{len(keys)} blocks for {len(array)} slots")
            self._move(array, Trigger.APPLY)
            deque(map(self._keys.__setitem__, lease.slots, keys), maxlen=0)

    def register(self, lease: WritableLease, failed: Collection[int] = ()) -> Registered:
        """Make the blocks of the lease matchable, except indices `failed`, whose slots are given up.

        A block that is registered already keeps its first slot (dedup); the returned lease then holds that one.
        """
        with self._locked():
            array = lease.borrow(self)
            keep = np.ones(len(array), bool)
            if failed:
                keep[list(failed)] = False
            good = array[keep]
            state = self._require(good, Trigger.REGISTER)
            lease.consume(self)
            slots: list[int] = good.tolist()
            keys = list(map(self._keys.__getitem__, slots))
            first = list(map(self._slots.setdefault, map(hash_of, keys), slots))
            if first == slots:
                self._move(good, Trigger.REGISTER, state)
                self._slots.remember(good, keys)
                self._reset(array[~keep])
                return Registered(Lease(self, good), keys)
            held, is_new = np.array(first, np.int32), np.array(first, np.int32) == good
            self._move(good[is_new], Trigger.REGISTER)
            self._hold(np.setdiff1d(held, good[is_new]))
            self._reset(np.concatenate([array[~keep], good[~is_new]]))
            new = [key for key, fresh in zip(keys, is_new, strict=True) if fresh]
            self._slots.remember(good[is_new], new)
            return Registered(Lease(self, np.array(list(dict.fromkeys(first)), np.int32)), new)

    def discard(self, lease: WritableLease) -> None:
        """Give up unregistered slots; their content is lost."""
        with self._locked():
            array = lease.borrow(self)
            if (self._states[array] == SlotState.REGISTERED).any():
                raise StateError(f"{self.name}: cannot discard a slot that is REGISTERED")
            self._reset(lease.consume(self))

    # -- using --------------------------------------------------------------------------------------

    def match(self, hashes: Iterable[BlockHash]) -> Lease:
        """Lease the longest prefix of `hashes` that is registered (perhaps nothing)."""
        with self._locked():
            array = self._slots.prefix(hashes)
            self._hold(array)
            return Lease(self, array)

    def keys(self, lease: Lease) -> list[BlockKey]:
        """The blocks of a lease, in order. Keeps the lease."""
        with self._locked():
            return list(map(self._keys.__getitem__, lease.borrow(self).tolist()))

    def registered(self, start: int, stop: int) -> list[BlockKey]:
        """The blocks that can be matched in slots [start, stop)."""
        with self._locked():
            slots = np.flatnonzero(self._states[start:stop] == SlotState.REGISTERED).tolist()
            return [self._keys[start + at] for at in slots if start + at not in self._doomed]

    def release(self, lease: Lease) -> None:
        """Give a lease back; blocks that nobody holds any more can be evicted."""
        with self._locked():
            self._unhold(lease.consume(self))

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._slots

    def __len__(self) -> int:
        return len(self._keys)

    # -- losing -------------------------------------------------------------------------------------

    def invalidate(self, hashes: Iterable[BlockHash]) -> list[BlockKey]:
        """Forget blocks whose bytes are wrong: unmatchable now, free when their last lease ends."""
        with self._locked():
            slots = (slot for block in hashes if (slot := self._slots.get(block)) is not None)
            return self._forget(list(dict.fromkeys(slots)))

    def reset(self) -> list[BlockKey]:
        """Forget every registered block; leases stay good until they are released."""
        with self._locked():
            return self._forget(list(self._slots.values()))

    def abandon(self, array: Slots) -> None:
        """Queue the slots of a lease that was collected unreleased; any thread, takes no lock."""
        self._abandoned.append(array)

    # -- books --------------------------------------------------------------------------------------

    def statistics(self) -> PoolStatistics:
        """Counts now."""
        with self._locked():
            total, free = len(self._keys), len(self._free)
            leased = total - free - self._n_cached
            return PoolStatistics(total, free, leased, self._n_cached, len(self._slots), self._n_evictions)

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        with self._locked():
            states, leases = self._states, self._leases
            free = np.array(sorted(self._free), np.int32)
            registered = states == SlotState.REGISTERED
            cached = registered & (leases == 0)
            rules = {
                "a free slot twice": len(set(self._free)) == len(self._free),
                "free slots are reset and unleased": not states[free].any() and not leases[free].any(),
                "free + leased + cached = total": len(free) + int((leases > 0).sum()) + self._n_cached
                == len(self._keys),
                "cached count": int(cached.sum()) == self._n_cached,
                "a lease count below zero": not (leases < 0).any(),
                "unregistered slots have one holder": bool(
                    (leases[(states == SlotState.PARTIAL) | (states == SlotState.COMPLETE)] == 1).all()
                ),
                "the index names registered slots": all(
                    registered[slot] and self._keys[slot].hash == block for block, slot in self._slots.items()
                ),
                "every registered slot is in the index or doomed": int(registered.sum())
                == len(self._slots) + len(self._doomed),
                "doomed slots are leased": all(leases[slot] > 0 for slot in self._doomed),
                "the index agrees with itself": self._slots.is_consistent(),
            }
            for rule, holds in rules.items():
                if not holds:
                    raise InvariantError(f"pool {self.name!r}: broken: {rule}")

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<Pool {self.name}: {s.free} free + {s.leased} leased + {s.cached} cached = {s.total}>"

    # -- under the lock -----------------------------------------------------------------------------

    def _locked(self) -> threading.Lock:
        """The lock to hold; abandoned leases are taken back on the way in."""
        if self._abandoned:
            with self._lock:
                while self._abandoned:
                    array = self._abandoned.popleft()
                    registered = self._states[array] == SlotState.REGISTERED
                    self._unhold(array[registered])
                    self._reset(array[~registered])
        return self._lock

    def _require(self, array: Slots, trigger: Trigger) -> SlotState:
        """The one state all these slots are in, which must have this transition."""
        found = self._states.take(array).tobytes()
        if not found:
            return SlotState.RESET
        if found.count(found[0]) != len(found):
            raise StateError(f"{self.name}: cannot {trigger.value} slots in different states")
        state = _STATES[found[0]]
        if (state, trigger) not in TRANSITIONS:
            raise StateError(f"{self.name}: cannot {trigger.value} a slot that is {state.name}")
        return state

    def _move(self, array: Slots, trigger: Trigger, state: SlotState | None = None) -> None:
        """The one place where states change. All slots of a call are in the same `state`, if that was required."""
        if len(array):
            now = self._require(array, trigger) if state is None else state
            self._states[array] = TRANSITIONS[now, trigger]

    def _hold(self, array: Slots) -> None:
        counts = self._leases[array]
        idle = array[counts == 0]
        self._leases[array] = counts + 1
        if len(idle):
            self._n_cached -= len(idle)
            self._policy.leased(idle)

    def _unhold(self, array: Slots) -> None:
        counts = self._leases[array]
        idle = array[counts == 1]
        self._leases[array] = counts - 1
        if self._doomed and (doomed := [slot for slot in idle.tolist() if slot in self._doomed]):
            self._doomed.difference_update(doomed)
            gone = np.array(doomed, np.int32)
            self._move(gone, Trigger.INVALIDATE)
            self._policy.forgotten(gone)
            self._put_free(doomed)
            idle = np.array([slot for slot in idle.tolist() if self._states[slot]], np.int32)
        if len(idle):
            self._cache(idle)

    def _cache(self, array: Slots) -> None:
        self._n_cached += len(array)
        slots: list[int] = array.tolist()
        self._policy.cached(array, list(map(self._keys.__getitem__, slots)), self._slots)

    def _reset(self, array: Slots) -> None:
        """Give up unregistered slots, whatever their state."""
        if not len(array):
            return
        for state in (SlotState.RESET, SlotState.PARTIAL, SlotState.COMPLETE):
            self._move(array[self._states[array] == state], Trigger.DISCARD)
        self._leases[array] = 0
        self._put_free(array.tolist())

    def _evict(self, n: int) -> list[BlockKey]:
        victims = victims_of(self._policy, n, self._states, self._leases)
        evicted = list(map(self._keys.__getitem__, victims))
        array = np.array(victims, np.int32)
        self._slots.remove(array, evicted)
        self._move(array, Trigger.EVICT, SlotState.REGISTERED)
        self._n_cached -= len(victims)
        self._n_evictions += len(victims)
        self._put_free(victims)
        return evicted

    def _forget(self, slots: list[int]) -> list[BlockKey]:
        array = np.array(slots, np.int32)
        keys = [self._keys[slot] for slot in slots]
        self._slots.remove(array, keys)
        leased = self._leases[array] > 0
        self._doomed.update(array[leased].tolist())
        idle = array[~leased]
        self._policy.forgotten(idle)
        self._n_cached -= len(idle)
        self._move(idle, Trigger.INVALIDATE)
        self._put_free(idle.tolist())
        return keys

    def _put_free(self, slots: list[int]) -> None:
        deque(map(self._keys.__setitem__, slots, repeat(_NO_BLOCK)), maxlen=0)
        self._free += slots
