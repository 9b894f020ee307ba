"""The default: what gives the fewest hits for its slot and time goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tenuto.pools.policies.leaves import Batch, LeafQueues
from tenuto.pools.policies.protocol import Slots, Where, parents_of
from tenuto.pools.policies.reuse import EDGES, LONG, MANY_NEW, N_AGES, ReuseModel, Words, age_classes, classes_of
from tenuto.pools.policies.sketch import hash_words
from tenuto.tokens import BlockHash, BlockKey

_MOST_USES = 255
_MOST_OPEN = 256  # requests that may still add blocks
_SHORT = 96  # uses within so many new blocks, or a 64th of the slots, are one: a request touches its blocks repeatedly
_MOST_CHOSEN = 4096  # victims at a time
_MANY_SLOTS = 1 << 17
_MOST_PENDING = 8192  # new blocks of long prompts that are booked together
_LEAST_FIT = 1024  # new blocks between two fits, or an eighth of the slots


@dataclass(slots=True)
class _Request:
    """Batches of one chain that came right after each other. `time`: of the last one."""

    n_new: int = 0
    n_known: int = 0
    time: int = 0
    parts: list[tuple[Slots, int]] = field(default_factory=list[tuple[Slots, int]])
    pending: list[tuple[Slots, list[BlockHash]]] = field(default_factory=list[tuple[Slots, list[BlockHash]]])
    parent_of_pending: int = 0
    """The slot before the first pending one, and one more; 0: nothing is pending."""


class Returns:
    """Leaf before parent; among leaves the lowest expected hits per slot and time, learnt from blocks that came back.

    A block's class is what a cache can see of its request: how often the block was used, how many blocks the
    request added
    to a chain that was known, how long it is, and whether the block is its last. So sessions that go on are told from
    prompts that never come again, and both from prompts that many share. Leaves wait in queues by level of their
    class and by age; a victim is of the queue whose score is lowest. Nothing is set by hand but how much belief the
    first observations meet.
    """

    def __init__(self) -> None:
        self._model = ReuseModel()
        self._leaves = LeafQueues(is_newest_first=True)
        self._uses: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)  # 0: no content
        self._used_at: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._words: Words = np.zeros(0, np.uint64)
        self._depths: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self._levels: npt.NDArray[np.int8] = np.zeros(0, np.int8)
        self._open: OrderedDict[int, _Request] = OrderedDict()  # by the slot of their last block
        self._clock = 0
        self._aged_at = self._fit_at = 0
        self._chosen = Batch(np.zeros(0, np.int32), np.zeros(0, np.int64), 0)
        self._n_pending = 0
        self._short = _SHORT
        self._long_class = int(classes_of(np.ones(2, np.int64), MANY_NEW + 1, 1, LONG + 1)[0])

    def grow(self, n_slots: int) -> None:
        """See `Policy`."""
        more = n_slots - len(self._uses)
        self._short = max(_SHORT, n_slots >> 6)
        self._leaves.grow(n_slots)
        self._model.grow(n_slots)
        self._uses = np.concatenate([self._uses, np.zeros(more, np.uint8)])
        self._used_at = np.concatenate([self._used_at, np.zeros(more, np.int64)])
        self._words = np.concatenate([self._words, np.zeros(more, np.uint64)])
        self._depths = np.concatenate([self._depths, np.zeros(more, np.int32)])
        self._levels = np.concatenate([self._levels, np.zeros(more, np.int8)])

    def cached(self, slots: Slots, keys: Sequence[BlockKey], where: Where) -> None:
        """See `Policy`."""
        if not len(slots):
            return
        if self._continues(slots, keys, where):
            return
        self._flush()
        parents = parents_of(slots, keys, where)
        self._leaves.links.link(slots, parents)
        is_new = self._uses[slots] == 0
        is_used = is_new | (self._clock - self._used_at[slots] > self._short)
        if is_used.any():
            self._use(slots, keys, parents, is_new, is_used)
        else:
            _put(self._leaves, self._clock, slots, self._levels[slots])

    def leased(self, slots: Slots) -> None:
        """See `Policy`."""
        self._flush()
        self._leaves.remove(slots)

    def forgotten(self, slots: Slots) -> None:
        """See `Policy`."""
        self._flush()
        self._uses[slots] = 0
        self._put_back(self._leaves.lose(slots))

    def evict(self, n: int) -> list[int]:
        """See `Policy`."""
        if n and self._clock - self._aged_at >= max(16, len(self._uses) >> 8):
            self._age()
        if self._clock >= self._fit_at:
            self._model.fit(self._clock)
            self._fit_at = self._clock + max(_LEAST_FIT, len(self._uses) >> 3)
        victims: list[Slots] = []
        while n > 0:
            if not len(self._chosen.slots):
                self._choose(n)
            slots, stamps, _ = self._chosen
            chosen, stamps = slots[:n], stamps[:n]
            self._chosen = Batch(slots[n:], self._chosen.stamps[n:], 0)
            is_good = (self._leaves.stamps.of[chosen] == stamps) & (self._leaves.links.n_children[chosen] == 0)
            if not is_good.all():
                self._reconsider(chosen[~is_good])
                chosen = chosen[is_good]
            if not (len(chosen) or len(slots)):
                break
            victims.append(chosen)
            n -= len(chosen)
            self._leaves.stamps.of[chosen] = 0
            self._uses[chosen] = 0
        gone = victims[0] if len(victims) == 1 else np.concatenate([np.zeros(0, np.int32), *victims])
        found: list[int] = gone.tolist()
        return found

    def _choose(self, n: int) -> None:
        """The next victims: as many as wanted, in a large pool some more, since that costs little more."""
        if len(self._uses) >= _MANY_SLOTS:
            n = max(n, min(len(self._uses) >> 8, _MOST_CHOSEN))
        chosen: list[Slots] = []
        score = self._model.scores.__getitem__
        n_more = n
        while n_more > 0:
            if not self._leaves.queues:
                self._flush()
            if not self._leaves.queues:
                break
            taken = self._leaves.take(min(self._leaves.queues, key=score), n_more)
            if len(taken.freed):
                self._put_back(taken.freed)
            chosen.append(taken.victims)
            n_more -= len(taken.victims)
        if n_more == n:
            chosen.append(self._leaves.take_any(n))
        slots = np.concatenate(chosen)
        self._chosen = Batch(slots, self._leaves.stamps.draw(slots), 0)

    def _reconsider(self, slots: Slots) -> None:
        """These were chosen, and were used or continued since: those that are not leased queue up again."""
        here = slots[(self._leaves.stamps.of[slots] > 0) & (self._leaves.links.n_children[slots] > 0)]
        self._put_back(here)

    # -- inside -------------------------------------------------------------------------------------

    def _continues(self, slots: Slots, keys: Sequence[BlockKey], where: Where) -> bool:
        """The short way for one more part of a long new prompt, as engines compute them: its class is known."""
        parent = where.get(keys[0].parent, -1)
        request = self._open.get(parent)
        if request is None or request.n_new <= MANY_NEW or self._clock - request.time > self._short:
            return False
        first = int(self._depths[parent]) + 1
        hashes = [key.hash for key in keys]
        if first <= LONG or self._uses[slots].any() or [key.parent for key in keys[1:]] != hashes[:-1]:
            return False
        request.pending.append((slots, hashes))
        request.time, request.n_new = self._clock, request.n_new + len(slots)
        del self._open[parent]
        tail = int(slots[-1])
        self._open[tail] = request
        self._depths[tail] = first + len(slots) - 1
        self._uses[slots] = 1
        self._clock += len(slots)
        self._n_pending += len(slots)
        if not request.parent_of_pending:
            request.parent_of_pending = parent + 1
        if self._n_pending > min(len(self._uses) >> 7, _MOST_PENDING):
            self._flush()
        return True

    def _flush(self) -> None:
        """Book what is pending."""
        if not self._n_pending:
            return
        self._n_pending = 0
        for request in self._open.values():
            if request.pending:
                slots = np.concatenate([slots for slots, _ in request.pending])
                hashes = [block for _, hashes in request.pending for block in hashes]
                parent, request.parent_of_pending = request.parent_of_pending - 1, 0
                request.pending.clear()
                self._book(parent, slots, hashes)

    def _book(self, parent: int, slots: Slots, hashes: list[BlockHash]) -> None:
        """New blocks at the end of a long new prompt."""
        now, n = self._clock, len(slots)
        first = int(self._depths[parent]) + 1
        self._leaves.links.extend(parent, slots)
        self._words[slots] = words = hash_words(hashes)
        if self._model.are_sampled(words).any():
            uses = np.minimum(self._model.recall(words, now) + 1, _MOST_USES)
            self._model.remember(words, np.full(n, self._long_class, np.int64), uses, 1 / (first + n), now)
        level = int(self._model.levels[self._long_class])
        self._levels[slots] = self._levels[parent] = level
        self._used_at[slots] = now
        self._depths[slots] = np.arange(first, first + n, dtype=np.int32)
        self._leaves.put(level * N_AGES, slots[::-1].copy(), now)

    def _use(
        self, slots: Slots, keys: Sequence[BlockKey], parents: Slots,
        is_new: npt.NDArray[np.bool_], is_used: npt.NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Blocks of which some are new, or used again after a while."""
        now, words = self._clock, hash_words([key.hash for key in keys])
        self._words[slots] = words
        self._depths[slots] = _depths_of(self._depths, slots, parents)
        before = self._uses[slots].astype(np.int64)
        recalled = self._model.recall(words[is_used], now)
        before[is_new] = recalled[is_new[is_used]]
        uses = np.minimum(before + is_used, _MOST_USES)
        self._uses[slots] = uses
        self._used_at[slots[is_used]] = now
        n_new = int((before == 0).sum())
        parent = int(parents[0])
        request = self._open.pop(parent, None) if is_new[0] else None
        if request is None or now - request.time > self._short:
            request = _Request(n_known=int(parent >= 0))
        request.n_new += n_new
        request.n_known += len(slots) - n_new
        request.time = now
        length = int(self._depths[slots[-1]])
        self._revise(request, length)
        classes = classes_of(uses, request.n_new, request.n_known, length)
        self._model.remember(words[is_used], classes[is_used], uses[is_used], 1 / length, now)
        levels = self._model.levels[classes]
        self._levels[slots] = levels
        _put(self._leaves, self._clock, slots, levels)
        request.parts.append((slots, now))
        self._open[int(slots[-1])] = request
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        self._clock += int(is_new.sum())

    def _revise(self, request: _Request, length: int) -> None:
        """The request has grown: what it brought before is of other classes now, and its end is no end any more."""
        if not request.parts:
            return
        slots = np.concatenate([part[self._used_at[part] == time] for part, time in request.parts])
        slots = slots[self._uses[slots] > 0]
        request.parts = request.parts[-1:] if len(slots) > _MOST_USES else request.parts
        if not len(slots):
            return
        classes = classes_of(self._uses[slots].astype(np.int64), request.n_new, request.n_known, length)
        classes[-1] -= 1
        levels = self._model.levels[classes]
        self._model.correct(self._words[slots], classes)
        is_other = (self._levels[slots] != levels) & (self._leaves.stamps.of[slots] > 0)
        self._levels[slots] = levels
        if is_other.any():
            _put(self._leaves, self._clock, slots[is_other], levels[is_other])

    def _put_back(self, freed: Slots) -> None:
        """Their children have gone: they are leaves of their own level and age."""
        if not len(freed):
            return
        ages = age_classes(self._clock - self._used_at[freed])
        queues = self._levels[freed] * np.int64(N_AGES) + ages
        for queue in dict.fromkeys(queues.tolist()):
            group = freed[queues == queue]
            self._leaves.put(queue, group, int(self._used_at[group[0]]), is_next=True)

    def _age(self) -> None:
        """Batches that have become older go to the queues of their age."""
        self._aged_at = self._clock
        queues = self._leaves.queues
        oldest = [self._clock - int(edge) for edge in EDGES]
        oldest[1] = min(oldest[1], self._clock - self._short)
        for level in {queue // N_AGES for queue in queues}:
            for age in range(N_AGES - 1):
                queue = level * N_AGES + age
                if queue in queues:
                    self._leaves.move(queue, oldest[age + 1], queue + 1)


def _depths_of(depths: npt.NDArray[np.int32], slots: Slots, parents: Slots) -> npt.NDArray[np.int32]:
    """Blocks of the chain up to each, as far as it is here."""
    first = int(depths[parents[0]]) + 1 if parents[0] >= 0 else 1
    if (parents[1:] == slots[:-1]).all():
        return np.arange(first, first + len(slots), dtype=np.int32)
    return np.where(parents >= 0, depths[parents] + 1, 1).astype(np.int32)


def _put(leaves: LeafQueues, now: int, slots: Slots, levels: npt.NDArray[np.int64] | npt.NDArray[np.int8]) -> None:
    """Queue slots, in chain order, as used now."""
    if (levels == levels[0]).all():
        leaves.put(int(levels[0]) * N_AGES, slots[::-1].copy(), now)
        return
    for level in np.unique(levels).tolist():
        leaves.put(level * N_AGES, slots[levels == level][::-1], now)
