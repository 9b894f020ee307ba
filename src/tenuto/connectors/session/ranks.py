"""What the ranks of an engine say, as one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from tenuto.connectors.session.messages import Entries, Handshake
from tenuto.errors import ConfigError
from tenuto.tiers.store import Capacity, StoreNews
from tenuto.tokens import BlockHash, BlockKey
from tenuto.transfers.plan import TransferResult, merge_results


class Ranks:
    """A transfer has ended, a disk has a slot, a block of another engine is there: when it is so on every rank.

    A slot has the same number on every rank.
    """

    def __init__(self, world_size: int, poll_s: float, clock: Callable[[], float]) -> None:
        self._world_size = world_size
        self._poll_s = poll_s
        self._clock = clock
        self._asked_at = clock()
        self._disks: dict[int, Capacity] = {}
        self._partial: dict[int, list[TransferResult]] = {}  # by transfer
        self._moves: dict[BlockHash, dict[int, str]] = {}  # where ranks have a block that has not moved on all
        self._seen: dict[tuple[str, int], tuple[BlockKey, set[int]]] = {}  # blocks of others that some ranks see

    def step(self) -> None:
        """The ranks are asked for their reports."""
        self._asked_at = self._clock()

    def may_have_news(self) -> bool:
        """Whether they were not asked for so long that they may know blocks of other engines which we don't."""
        return 0 < self._poll_s < self._clock() - self._asked_at

    def recovered(self, shakes: Mapping[int, Handshake], n_slots: int) -> Entries:
        """The blocks that every rank found in the first `n_slots` slots, oldest first."""
        first, *others = shakes.values()
        common = set(first.recovered).intersection(*(shake.recovered for shake in others))
        return [entry for entry in first.recovered if entry in common and entry[0] < n_slots]

    def disk(self, news: Mapping[int, Capacity]) -> Capacity | None:
        """The slots that all ranks have, after `news`; None while a rank has no disk."""
        self._disks |= news
        if len(self._disks) < self._world_size:
            return None
        n_slots = min(disk.n_slots for disk in self._disks.values())
        least = [disk for disk in self._disks.values() if disk.n_slots == n_slots]
        n_blocks = min(disk.n_usable for disk in self._disks.values())
        is_growing = all(disk.is_growing for disk in least)
        return Capacity(n_slots, is_growing, n_blocks if n_blocks < n_slots else None)

    def volumes(
        self, news: Mapping[int, StoreNews], known: Container[BlockHash]
    ) -> tuple[list[tuple[BlockKey, str]], list[BlockHash]]:
        """(blocks that lie on a volume on all ranks now, blocks that are lost on any); `known` are on disk."""
        self._moves = {block: by_rank for block, by_rank in self._moves.items() if block in known}
        moved: list[tuple[BlockKey, str]] = []
        lost: list[BlockHash] = []
        for rank, told in news.items():
            lost += told.lost
            for key, volume in told.moved:
                by_rank = self._moves.setdefault(key.hash, {})
                by_rank[rank] = volume
                if len(by_rank) == self._world_size and len(set(by_rank.values())) == 1:
                    del self._moves[key.hash]
                    moved.append((key, volume))
        for block in lost:
            self._moves.pop(block, None)
        return moved, lost

    def ended(self, results: Mapping[int, list[TransferResult]]) -> Iterator[TransferResult]:
        """Transfers that have now ended on all ranks, in id order, with what failed on any."""
        for transfer_id in sorted(results):
            known = self._partial.setdefault(transfer_id, [])
            known += results[transfer_id]
            if len(known) == self._world_size:
                yield merge_results(self._partial.pop(transfer_id))

    def peers(self, news: Mapping[int, Mapping[str, Entries]]) -> Iterator[tuple[str, Entries]]:
        """(instance, blocks of it) that all ranks have now seen listed."""
        for rank, found in news.items():
            for volume, entries in found.items():
                last = dict(entries)  # of each slot
                yield volume, [entry for entry in last.items() if self._is_seen(rank, volume, *entry)]

    def _is_seen(self, rank: int, volume: str, slot: int, key: BlockKey) -> bool:
        if self._world_size == 1:
            return True
        known, ranks = self._seen.get((volume, slot), (key, set[int]()))
        if known != key:  # the slot has another block by now
            ranks = set[int]()
        ranks.add(rank)
        self._seen[volume, slot] = key, ranks
        if len(ranks) < self._world_size:
            return False
        del self._seen[volume, slot]
        return True


def refuse_others(shakes: Sequence[Handshake], extent_bytes: int, namespace: bytes) -> None:
    """Raise `ConfigError` when a rank differs from the scheduler's side."""
    for shake in shakes:
        if (shake.extent_bytes, shake.namespace) != (extent_bytes, namespace):
            raise ConfigError(
                f"rank {shake.rank} sees another model or geometry than the scheduler; "
                "start all processes from the same model folder and settings"
            )
