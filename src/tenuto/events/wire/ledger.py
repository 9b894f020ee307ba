"""Which blocks of a router one source holds, when the source has names and sizes of its own for them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tenuto.errors import InvariantError
from tenuto.events.wire.places import Place, Places
from tenuto.events.wire.router import NO_SCOPE, RouterBlock, Scope, router_blocks

K = TypeVar("K", bound=Hashable)

REMEMBERED_BLOCKS = 65_536
"""Blocks that are gone, but whose hashes are still known: what stands on them can be told."""


class Sink(Protocol):
    """Is told what is there, by the router's hashes: each block once when it comes and once when it goes."""

    def hold(self, block: RouterBlock) -> None:
        """`block` is there from now on."""
        ...

    def drop(self, sequence_hash: int) -> None:
        """That block is not there any more."""
        ...


@dataclass(frozen=True, slots=True)
class Content(Generic[K]):
    """What a block of a source holds: `scope` counts if it is the first of its chain.

    One with `is_opaque` has a hash that tokens alone do not give (an image in it): neither it nor what stands on it
    is told.
    """

    key: K
    parent: K | None
    """None: it is the first of its chain."""
    token_bytes: bytes
    scope: Scope = NO_SCOPE
    is_opaque: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    blocks: tuple[RouterBlock, ...]
    scope: Scope
    is_opaque: bool


class Ledger(Generic[K]):
    """One source's blocks by its own names, told to `sink` as blocks of `router_tokens` tokens.

    A block of the source is one or several of the router's. It is told when it is somewhere, its tokens are known and
    so are those of all before it; it need not be told in this order. `remembered` blocks that have gone are still
    known as parents.
    """

    def __init__(self, router_tokens: int, sink: Sink, remembered: int = REMEMBERED_BLOCKS) -> None:
        self.places: Places[K] = Places()
        self._router_tokens = router_tokens
        self._sink = sink
        self._remembered = remembered
        self._known: dict[K, _Known] = {}
        self._gone: dict[K, None] = {}  # known and nowhere, longest first
        self._waiting: dict[K, Content[K]] = {}  # somewhere, but with a parent that is not known
        self._behind: dict[K, dict[K, None]] = {}  # parent → those waiting for it
        self._holders: dict[int, int] = {}  # two names may have the same hash for a router

    def __repr__(self) -> str:
        return f"Ledger(blocks={len(self.places)}, known={len(self._known)}, waiting={len(self._waiting)})"

    def __contains__(self, key: K) -> bool:
        return key in self.places

    def wants(self, key: K) -> bool:
        """Whether it is somewhere, and what it holds is not known."""
        return key in self.places and key not in self._known and key not in self._waiting

    def store(self, key: K, place: Place) -> None:
        """`key` is in `place`, too."""
        is_new = key not in self.places
        self.places.add(key, place)
        if is_new and key in self._known:
            del self._gone[key]
            self._hold(self._known[key].blocks)

    def learn(self, content: Content[K]) -> None:
        """Take in what a block holds; of one that is nowhere, or known already, this does nothing."""
        key, parent = content.key, content.parent
        if not self.wants(key):
            return
        if parent is None or parent in self._known:
            self._resolve(content)
        else:
            self._waiting[key] = content
            self._behind.setdefault(parent, {})[key] = None

    def remove(self, key: K, place: Place) -> None:
        """`key` is not in `place` any more."""
        if key in self.places:
            self.places.discard(key, place)
            self._settle((key,))

    def clear(self, kind: str, which: str = "") -> None:
        """Nothing is in that place any more, or with no name in any of its kind."""
        self._settle(self.places.clear(kind, which))

    def clear_all(self) -> None:
        """Nothing is anywhere any more."""
        self._settle(self.places.clear_all())

    def _resolve(self, content: Content[K]) -> None:
        todo = [content]
        while todo:
            content = todo.pop()
            known = self._known[content.key] = self._known_of(content)
            self._hold(known.blocks)
            todo += [self._waiting.pop(child) for child in self._behind.pop(content.key, ())]

    def _known_of(self, content: Content[K]) -> _Known:
        parent = None if content.parent is None else self._known[content.parent]
        scope = content.scope if parent is None else parent.scope
        if content.is_opaque or (parent is not None and parent.is_opaque):
            return _Known((), scope, is_opaque=True)
        before = None if parent is None else parent.blocks[-1].sequence_hash
        blocks = router_blocks(content.token_bytes, self._router_tokens, scope, before)
        return _Known(tuple(blocks), scope, is_opaque=False)

    def _settle(self, keys: Sequence[K]) -> None:
        """Of these blocks, forget those that are nowhere."""
        for key in keys:
            if key in self.places:
                continue
            if known := self._known.get(key):
                self._gone[key] = None
                self._drop(known.blocks)
            elif content := self._waiting.pop(key, None):
                self._stop_waiting(content)
        while len(self._gone) > self._remembered:
            oldest = next(iter(self._gone))
            del self._gone[oldest], self._known[oldest]

    def _stop_waiting(self, content: Content[K]) -> None:
        assert content.parent is not None
        others = self._behind[content.parent]
        del others[content.key]
        if not others:
            del self._behind[content.parent]

    def _hold(self, blocks: tuple[RouterBlock, ...]) -> None:
        for block in blocks:
            n_holders = self._holders.get(block.sequence_hash, 0)
            self._holders[block.sequence_hash] = n_holders + 1
            if not n_holders:
                self._sink.hold(block)

    def _drop(self, blocks: tuple[RouterBlock, ...]) -> None:
        for block in reversed(blocks):
            n_holders = self._holders[block.sequence_hash] - 1
            if n_holders:
                self._holders[block.sequence_hash] = n_holders
            else:
                del self._holders[block.sequence_hash]
                self._sink.drop(block.sequence_hash)

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance."""
        held = [key for key in self._known if key in self.places]
        behind = {child: parent for parent, children in self._behind.items() for child in children}
        is_right = (
            len(held) + len(self._gone) == len(self._known)
            and len(self._gone) <= self._remembered
            and all(key in self.places and key not in self._known for key in self._waiting)
            and behind == {key: content.parent for key, content in self._waiting.items()}
            and sum(self._holders.values()) == sum(len(self._known[key].blocks) for key in held)
        )
        if not is_right:
            raise InvariantError(f"{self!r} does not add up")
