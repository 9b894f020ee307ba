"""What a user of the library holds: blocks that are being filled, and blocks that are whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tenuto.errors import LeaseError, StateError
from tenuto.library.core import CacheCore
from tenuto.library.sequence import TokenSequence, extra_of
from tenuto.pools import Lease, SlotState, WritableLease
from tenuto.tokens import BlockHash, ExtraKeys


class _Held:
    """Blocks of the device's memory that are leased."""

    def __init__(self, core: CacheCore, leases: Sequence[Lease | WritableLease]) -> None:
        self._core = core
        for lease in leases:
            lease.known_as = type(self).__name__

    @property
    def slots(self) -> list[int]:
        """Their block numbers in the layout: a page table. Raises `LeaseError` when the lease was consumed."""
        raise NotImplementedError

    @property
    def is_consumed(self) -> bool:
        """Whether the lease was given back, or taken by a call."""
        raise NotImplementedError

    def view(self, block: int, layer: int, outer: int) -> Any:
        """K (`outer` 0) or V (1) of one layer of the `block`-th of these blocks: ``(page_tokens, inner_dim)``.

        To be written into: a torch tensor over torch memory, else a numpy array, of the layout's dtype: see
        `BlockMemory.view`. Raises `IndexError`, and as `slots` does.
        """
        slots = self.slots
        if not 0 <= block < len(slots):
            raise IndexError(f"block {block} of {len(slots)}")
        return self._core.memory.view(slots[block], layer, outer)

    def _give_back(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_consumed:
            self._give_back()


class Blocks(_Held):
    """Read-only lease on `len(self)` blocks of a sequence, one behind the other: they stay in the device's memory.

    `KVCache.match` and `WritableBlocks.register` give it. Use it with ``with``, or `release` it. One that is dropped
    gives its blocks back and warns.
    """

    def __init__(self, core: CacheCore, sequence: TokenSequence, start: int, leases: Sequence[Lease]) -> None:
        """Blocks from `start` on of a sequence, in order of the leases."""
        super().__init__(core, leases)
        self._leases: list[Lease] | None = list(leases)
        self._n_blocks = sum(map(len, leases))
        self.start = start
        """Index in the sequence of the first of these blocks; 0 for what `match` gives."""
        self.sequence = sequence
        """Their tokens, from the sequence's first on; `WritableBlocks.init_sequence` continues it."""

    def __len__(self) -> int:
        return self._n_blocks

    @property
    def n_tokens(self) -> int:
        """Tokens of these blocks: after `match`, what need not be computed."""
        return len(self) * self._core.page_tokens

    @property
    def hashes(self) -> list[BlockHash]:
        """Their names in order, 16 bytes each: see `BlockHash`."""
        return self.sequence.hashes[self.start : self.start + len(self)]

    @property
    def slots(self) -> list[int]:
        """Their block numbers in the layout, in order: a page table. Raises `LeaseError` when released."""
        if self._leases is None:
            raise LeaseError("these Blocks were already released")
        return [slot for lease in self._leases for slot in lease.slots]

    @property
    def is_consumed(self) -> bool:
        """Whether they were released."""
        return self._leases is None

    def view(self, block: int, layer: int, outer: int) -> Any:
        """K (`outer` 0) or V (1) of one layer of the `block`-th of these blocks: ``(page_tokens, inner_dim)``.

        A numpy array that is read-only, or over torch memory a tensor, which can't be and must not be written; of the
        layout's dtype: see `BlockMemory.view`. Raises `IndexError`, and `LeaseError` when released.
        """
        found: Any = super().view(block, layer, outer)
        if hasattr(found, "setflags"):
            found.setflags(write=False)
        return found

    def release(self) -> None:
        """Give the blocks back: they stay matchable, and can be evicted. Raises `LeaseError` when released before."""
        if self._leases is None:
            raise LeaseError("these Blocks were already released")
        for lease in self._leases:
            lease.release()
        self._leases = None

    _give_back = release

    def __repr__(self) -> str:
        return f"<Blocks {'released' if self.is_consumed else len(self)}>"


class WritableBlocks(_Held):
    """Exclusive lease on empty blocks, to be filled with one sequence in order; `KVCache.allocate` gives it.

    The first goes from RESET to PARTIAL by `init_sequence`, each to COMPLETE by `commit`, and the next to PARTIAL by
    the next token. `register` makes them matchable and consumes the lease, as `discard` does. Use it with ``with``. One
    that is dropped gives its blocks back and warns. One thread at a time.
    """

    def __init__(self, core: CacheCore, lease: WritableLease) -> None:
        super().__init__(core, [lease])
        self._lease = lease
        self._page_tokens = core.page_tokens
        self._sequence: TokenSequence | None = None
        self._start = 0
        self._n_complete = 0
        self._is_partial = False
        self._is_registered = False

    def __len__(self) -> int:
        return len(self._lease)

    @property
    def states(self) -> list[SlotState]:
        """The state of each block. Raises `LeaseError` when consumed, as everything here does."""
        n_open = len(self.slots) - self._n_complete - self._is_partial
        states = [SlotState.COMPLETE] * self._n_complete + [SlotState.PARTIAL] * self._is_partial
        return states + [SlotState.RESET] * n_open

    @property
    def slots(self) -> list[int]:
        """Their block numbers in the layout. Raises `StateError` when registered, `LeaseError` when discarded."""
        if self._is_registered:
            raise StateError("these blocks are REGISTERED, to be read alone: use the Blocks that `register` gave")
        return self._lease.borrow(self._core.pool).tolist()

    @property
    def is_consumed(self) -> bool:
        """Whether they were registered or discarded."""
        return self._lease.is_consumed

    @property
    def n_tokens(self) -> int:
        """Tokens that were added to these blocks; those of `after` do not count."""
        return 0 if self._sequence is None else len(self._sequence.chain) - self._start * self._page_tokens

    def init_sequence(self, salt: str | ExtraKeys = "", after: Blocks | None = None) -> None:
        """RESET → PARTIAL: the first block begins a sequence, or continues it behind all blocks of `after`.

        `salt`: what else the keys and values depend on, or whom they belong to; other salts share no blocks. Behind
        `after` it is that of `after`, and none may be given. Raises `StateError` when one has begun already.
        """
        if self._sequence is not None:
            raise StateError(f"cannot init a sequence in blocks that have one: block 0 is {self.states[0].name}")
        begun = _begin(self._core, salt, after)
        self._core.pool.init(self._lease, 0)
        self._sequence, self._start = begun
        self._is_partial = True

    def add_token(self, token_id: int) -> None:
        """Add one token to the block that is PARTIAL. Raises `StateError` when it is full: `commit` it first."""
        if not self.add_tokens([token_id]):
            raise StateError(f"cannot add a token to block {self._n_complete}: it is full; commit it")

    def add_tokens(self, token_ids: Sequence[int]) -> int:
        """Add tokens up to the end of the block that is PARTIAL; how many were taken, 0 when it is full.

        Raises `StateError` before `init_sequence`, behind the last block, and for what is no token (0 to 2³² - 1).
        """
        sequence = self._begun("add tokens to")
        if not self._is_partial and self._n_complete == len(self.slots):
            raise StateError(f"cannot add tokens: all {self._n_complete} blocks are COMPLETE")
        room = (self._n_complete + 1) * self._page_tokens - self.n_tokens
        taken = list(token_ids[:room])
        sequence.append(taken)
        if taken and not self._is_partial:
            self._core.pool.init(self._lease, self._n_complete)
            self._is_partial = True
        return len(taken)

    def commit(self) -> BlockHash:
        """PARTIAL → COMPLETE: the block is full; gives its name. Raises `StateError` unless one is PARTIAL and full."""
        sequence = self._begun("commit")
        at = self._n_complete
        if not self._is_partial:
            raise StateError(f"cannot commit: no block is PARTIAL, {at} are COMPLETE")
        if self.n_tokens < (at + 1) * self._page_tokens:
            n_tokens = self.n_tokens - at * self._page_tokens
            raise StateError(f"cannot commit block {at}: it has {n_tokens} tokens of {self._page_tokens}")
        key = sequence.chain.key(self._start + at)
        self._core.pool.commit(self._lease, at, key)
        self._n_complete, self._is_partial = at + 1, False
        return key.hash

    def apply(self, token_ids: Sequence[int], salt: str | ExtraKeys = "", after: Blocks | None = None) -> None:
        """RESET → COMPLETE: all blocks at once get their tokens, ``len(self) * page_tokens``.

        `salt` and `after`: see `init_sequence`. Raises `StateError`, with nothing changed, for another number of tokens
        or blocks that are not RESET.
        """
        n_tokens = len(self.slots) * self._page_tokens
        if len(token_ids) != n_tokens:
            raise StateError(f"cannot apply {len(token_ids)} tokens to blocks of {n_tokens}")
        if self._sequence is not None:
            raise StateError(f"cannot apply to blocks that have a sequence: block 0 is {self.states[0].name}")
        sequence, start = _begin(self._core, salt, after)
        sequence.append(token_ids)
        self._core.pool.apply(self._lease, [sequence.chain.key(index) for index in range(start, start + len(self))])
        self._sequence, self._start, self._n_complete = sequence, start, len(self)

    def register(self) -> Blocks:
        """COMPLETE → REGISTERED: the bytes are all there, and others may match the blocks. Consumes the lease.

        Waits while the tiers below have no room for what is on its way, `runtime.load_timeout_s` at most. A block that
        is registered already keeps its first bytes, and the lease given is on those. On a GPU: what writes the bytes is
        queued on the current stream. Raises `StateError`, with nothing changed, unless every block is COMPLETE.
        """
        if self._sequence is None or self._n_complete < len(self.slots):
            least = self.states[self._n_complete] if len(self) else SlotState.RESET
            raise StateError(f"cannot register block {self._n_complete}: it is {least.name}")
        held = self._core.register(self._lease, self._sequence, self._start)
        self._is_registered = True
        return Blocks(self._core, self._sequence, self._start, [held])

    def reset(self) -> None:
        """Any state but REGISTERED → RESET: the blocks are empty again, and still leased. Raises as `slots` does."""
        if self.slots:
            self._lease = self._core.empty(self._lease)
            self._lease.known_as = type(self).__name__
        self._sequence, self._start, self._n_complete, self._is_partial = None, 0, 0, False

    def discard(self) -> None:
        """Give the blocks up: their content is lost. Raises as `slots` does."""
        if self.slots:
            self._lease.discard()

    def _begun(self, verb: str) -> TokenSequence:
        if not self.slots or self._sequence is None:
            raise StateError(f"cannot {verb} block 0: it is RESET; init_sequence comes first")
        return self._sequence

    _give_back = discard

    def __repr__(self) -> str:
        if self._lease.is_consumed:
            return "<WritableBlocks consumed>"
        return f"<WritableBlocks {', '.join(state.name for state in self.states)}>"


def _begin(core: CacheCore, salt: str | ExtraKeys, after: object) -> tuple[TokenSequence, int]:
    """A sequence to be filled, and the index of its next block."""
    if after is None:
        return core.begin(extra_of(salt)), 0
    if not isinstance(after, Blocks):
        raise StateError(f"cannot continue behind {type(after).__name__}; give the Blocks that match or register gave")
    if salt:
        raise StateError("cannot give a salt to blocks behind others, whose salt they have; leave it out")
    start = after.start + len(after)
    return after.sequence.head(start), start
