"""What a prefix tree may be told: the blocks that are held, and all blocks before them, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tenuto.errors import InvariantError
from tenuto.events.wire.router import RouterBlock


@dataclass(frozen=True, slots=True)
class Changes:
    """What a tree that had the view before has to do: first `removed`, the last of a chain first, then `stored`."""

    removed: tuple[int, ...] = ()
    """Sequence hashes."""
    stored: tuple[RouterBlock, ...] = ()
    """Each behind its parent."""


class ReachableView:
    """The blocks held by one worker that a walk from the beginning of a prompt comes to.

    A router's tree finds nothing behind a gap, refuses a block whose parent it doesn't have, and forgets what stands on
    a block that is removed. So a block is told when it is held and its parent is told, it is removed with its parent,
    and comes back with it.
    """

    def __init__(self) -> None:
        self._held: dict[int, RouterBlock] = {}
        self._children: dict[int, dict[int, None]] = {}  # of held and of missing parents alike
        self._reachable: set[int] = set()
        self._removed: dict[int, None] = {}  # not yet taken
        self._stored: dict[int, RouterBlock] = {}

    def __len__(self) -> int:
        """Blocks that can be reached."""
        return len(self._reachable)

    def __repr__(self) -> str:
        return f"ReachableView(held={len(self._held)}, reachable={len(self._reachable)})"

    @property
    def n_held(self) -> int:
        """Blocks that are held, behind gaps too."""
        return len(self._held)

    def hold(self, block: RouterBlock) -> None:
        """The worker has `block` from now on."""
        self._held[block.sequence_hash] = block
        if block.parent is not None:
            self._children.setdefault(block.parent, {})[block.sequence_hash] = None
        if block.parent is None or block.parent in self._reachable:
            for reached in self._walk(block.sequence_hash, lambda child: child not in self._reachable):
                self._appear(reached)

    def drop(self, sequence_hash: int) -> None:
        """The worker does not have that block any more."""
        if sequence_hash in self._reachable:
            for lost in reversed(self._walk(sequence_hash, lambda child: child in self._reachable)):
                self._vanish(lost)
        block = self._held.pop(sequence_hash)
        if block.parent is not None:
            siblings = self._children[block.parent]
            del siblings[sequence_hash]
            if not siblings:
                del self._children[block.parent]

    def take(self) -> Changes:
        """What has changed since the last call: what came and went in between is not told."""
        changes = Changes(tuple(self._removed), tuple(self._stored.values()))
        self._removed, self._stored = {}, {}
        return changes

    def all(self) -> tuple[RouterBlock, ...]:
        """All blocks that can be reached, each behind its parent."""
        firsts = [key for key in self._reachable if self._held[key].parent is None]
        return tuple(self._held[key] for first in firsts for key in self._walk(first, lambda _: True))

    def _walk(self, start: int, is_wanted: Callable[[int], bool]) -> list[int]:
        """`start` and the wanted blocks below it, each behind its parent."""
        if start not in self._children:  # as most are that come or go
            return [start]
        order, todo = [start], [start]
        while todo:
            wanted = [child for child in self._children.get(todo.pop(), ()) if is_wanted(child)]
            order += wanted
            todo += wanted
        return order

    def _appear(self, key: int) -> None:
        self._reachable.add(key)
        if key in self._removed:
            del self._removed[key]
        else:
            self._stored[key] = self._held[key]

    def _vanish(self, key: int) -> None:
        self._reachable.discard(key)
        if key in self._stored:
            del self._stored[key]
        else:
            self._removed[key] = None

    def check(self) -> None:
        """Raise `InvariantError` unless exactly what is held all the way is reachable."""
        for key, block in self._held.items():
            is_right = block.parent is None or block.parent in self._reachable
            if is_right != (key in self._reachable):
                raise InvariantError(f"{self!r}: block {key} is on the wrong side")
        if not self._reachable <= self._held.keys():
            raise InvariantError(f"{self!r} reaches what is not held")


def runs_of(blocks: Iterable[RouterBlock], most: int | None = None) -> list[list[RouterBlock]]:
    """Blocks as runs, each the parent of the next, of `most` blocks at most."""
    runs: list[list[RouterBlock]] = []
    for block in blocks:
        if runs and runs[-1][-1].sequence_hash == block.parent and len(runs[-1]) != most:
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs
