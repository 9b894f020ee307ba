"""Several KV cache groups of one model: a pool for each, which are asked and filled together.

Layers that keep the same of a sequence are a group: all of it (full attention), its last tokens (sliding window), or
one state (linear attention, Mamba). Each has its own block size, and so its own chain of hashes over the same tokens.
The rule of hits is that of vLLM's hybrid KV cache coordinator: the longest prefix, of whole blocks of every group, from
whose end all groups can go on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from tenuto.errors import StateError
from tenuto.pools.lease import Lease, WritableLease
from tenuto.pools.pool import Full, Pool, PoolStatistics
from tenuto.tokens import BlockHash, BlockKey

GroupHashes = Mapping[str, Sequence[BlockHash]]
"""By group: the hashes of one sequence's blocks, from the first on."""


class Keeps(Enum):
    """What of a sequence the next token needs in a group."""

    ALL = "all"  # full attention
    WINDOW = "window"  # the last `window_tokens`, the next one among them
    STATE = "state"  # what the last block ended with


@dataclass(frozen=True, slots=True)
class Group:
    """A group's name and sizes. `window_tokens` counts the token that is computed, and is for `Keeps.WINDOW` alone."""

    name: str
    n_slots: int
    block_tokens: int
    keeps: Keeps = Keeps.ALL
    window_tokens: int = 0

    def __post_init__(self) -> None:
        if self.block_tokens < 1 or (self.keeps is Keeps.WINDOW) != (self.window_tokens > 0):
            raise ValueError(f"{self}: a window has tokens, other groups have none, and blocks have some")

    @property
    def window_blocks(self) -> int:
        """Blocks that a window needs before the next token, where there are so many."""
        return -(-(self.window_tokens - 1) // self.block_tokens)

    def needed(self, n_tokens: int) -> range:
        """Indices of the blocks without which nobody can go on behind `n_tokens` tokens, which are whole blocks."""
        end = n_tokens // self.block_tokens
        n_blocks = {Keeps.ALL: end, Keeps.WINDOW: self.window_blocks, Keeps.STATE: 1}[self.keeps]
        return range(max(end - n_blocks, 0), end)


@dataclass(frozen=True, slots=True)
class GroupLease:
    """Registered blocks, by group: those at `first` and behind it in their chain. Given back together."""

    leases: Mapping[str, Lease]
    first: Mapping[str, int]
    n_tokens: int = 0
    """Tokens of the hit; 0 for what `register` gives."""
    new: Mapping[str, list[BlockKey]] = field(default_factory=dict[str, list[BlockKey]])
    """Of `register`: the blocks that were not there before."""

    def release(self) -> None:
        """Give all of them back. Raises `LeaseError` when they were."""
        for lease in self.leases.values():
            lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not all(lease.is_consumed for lease in self.leases.values()):
            self.release()


@dataclass(slots=True)
class WritableGroupLease:
    """Empty slots, by group; `evicted` blocks lost theirs for them. Filled, registered or given up together."""

    leases: dict[str, WritableLease]
    evicted: dict[str, list[BlockKey]]
    is_complete: bool = False

    def discard(self) -> None:
        """Give all of them up. Raises `LeaseError` when they were, or are registered."""
        for lease in self.leases.values():
            lease.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not all(lease.is_consumed for lease in self.leases.values()):
            self.discard()


@dataclass(frozen=True, slots=True)
class GroupsFull:
    """Not that many slots can be had now: in these groups so many can."""

    available: Mapping[str, int]


def _new_pool(group: Group) -> Pool:
    return Pool(group.name, group.n_slots)


class GroupPools:
    """One `Pool` a group. Thread-safe; what changes several pools is done in all of them or in none.

    The pools are for looking, and for `invalidate`: a block that is lost in one group shortens hits by itself.
    """

    def __init__(self, groups: Sequence[Group], make_pool: Callable[[Group], Pool] = _new_pool) -> None:
        self.groups = {group.name: group for group in groups}
        if len(self.groups) != len(groups) or not groups:
            raise ValueError("each of several groups has a name of its own, and there is at least one")
        self.pools = {group.name: make_pool(group) for group in groups}
        self.step_tokens = math.lcm(*(group.block_tokens for group in groups))
        """A hit has a multiple of so many tokens: whole blocks of every group."""
        self._lock = threading.Lock()  # before those of the pools

    def match(self, hashes: GroupHashes, max_tokens: int | None = None) -> GroupLease:
        """Lease what the next token needs behind the longest prefix that every group can serve (perhaps nothing).

        `hashes`: of every group; `max_tokens`: the hit has no more.
        """
        with self._lock:
            while True:
                n_tokens = self._longest(hashes, max_tokens)
                needed = {name: group.needed(n_tokens) for name, group in self.groups.items()}
                leases = {
                    name: self.pools[name].match(hashes[name][blocks.start : blocks.stop])
                    for name, blocks in needed.items()
                }
                hit = GroupLease(leases, {name: blocks.start for name, blocks in needed.items()}, n_tokens)
                if all(len(leases[name]) == len(blocks) for name, blocks in needed.items()):
                    return hit
                hit.release()  # somebody invalidated one meanwhile

    def allocate(self, n_blocks: Mapping[str, int]) -> WritableGroupLease | GroupsFull:
        """Empty slots in each group, evicting cached blocks for them; where one has too few, nothing is evicted."""
        with self._lock:
            available = {name: now.free + now.cached for name, now in self.statistics().items()}
            short = {name: available[name] for name, n in n_blocks.items() if n > available[name]}
            if short:
                return GroupsFull(short)
            lease = WritableGroupLease({}, {})
            for name, n in n_blocks.items():
                answer = self.pools[name].allocate(n)
                if isinstance(answer, Full):  # somebody has used this pool by itself meanwhile
                    lease.discard()
                    return GroupsFull({name: answer.available})
                lease.leases[name], lease.evicted[name] = answer.lease, answer.evicted
            return lease

    def apply(self, lease: WritableGroupLease, keys: Mapping[str, Sequence[BlockKey]]) -> None:
        """The slots are for whole blocks `keys`, of each group in order. Keeps the lease.

        Raises `StateError`, with nothing changed, for other numbers of blocks, or slots that are not empty.
        """
        with self._lock:
            if lease.is_complete:
                raise StateError("cannot apply blocks to slots of groups that are COMPLETE")
            for name, slots in lease.leases.items():
                if len(keys.get(name, ())) != len(slots):
                    raise StateError(f"{name}: {len(keys.get(name, ()))} blocks for {len(slots)} slots")
            for name, slots in lease.leases.items():
                self.pools[name].apply(slots, keys[name])
            lease.is_complete = True

    def register(self, lease: WritableGroupLease) -> GroupLease:
        """Make the blocks matchable in all groups. Consumes the lease. Raises `StateError` before they were applied."""
        with self._lock:
            if not lease.is_complete:
                raise StateError("cannot register slots of groups that are RESET: apply blocks to them first")
            done = {name: self.pools[name].register(slots) for name, slots in lease.leases.items()}
        held = {name: registered.lease for name, registered in done.items()}
        return GroupLease(held, dict.fromkeys(held, 0), new={name: found.new for name, found in done.items()})

    def statistics(self) -> dict[str, PoolStatistics]:
        """Counts of each group now."""
        return {name: pool.statistics() for name, pool in self.pools.items()}

    def check(self) -> None:
        """Raise `InvariantError` unless the books of every group balance."""
        for pool in self.pools.values():
            pool.check()

    def __repr__(self) -> str:
        return f"<GroupPools {' '.join(map(repr, self.pools.values()))}>"

    def _longest(self, hashes: GroupHashes, max_tokens: int | None) -> int:
        """Each look at a block is made once; the length only falls until no group lowers it further."""
        lengths = [len(hashes[name]) * group.block_tokens for name, group in self.groups.items()]
        n_tokens = min(lengths if max_tokens is None else [*lengths, max(max_tokens, 0)])
        ends = {name: _Ends(group, self.pools[name], hashes[name], n_tokens) for name, group in self.groups.items()}
        while True:
            n_tokens -= n_tokens % self.step_tokens
            least = min(end.at_most(n_tokens) for end in ends.values())
            if least == n_tokens:
                return n_tokens
            n_tokens = least


class _Ends:
    """Behind which blocks of a sequence a group can go on."""

    def __init__(self, group: Group, pool: Pool, hashes: Sequence[BlockHash], n_tokens: int) -> None:
        self._group = group
        self._runs = [0]  # by end: blocks before it in one run
        for block in hashes[: n_tokens // group.block_tokens]:
            self._runs.append(self._runs[-1] + 1 if block in pool else 0)

    def at_most(self, n_tokens: int) -> int:
        """`n_tokens` where that can be served, else the most that may be: the last block that is missing is needed."""
        end = n_tokens // self._group.block_tokens
        run = self._runs[end]
        return n_tokens if run >= len(self._group.needed(n_tokens)) else (end - run - 1) * self._group.block_tokens
