"""The default: what gives the fewest hits for its slot and time goes first."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tenuto.pools.policies.protocol import Slots, Where, hash_of, parent_of
from tenuto.pools.policies.remembered import Ints, Words
from tenuto.pools.policies.reuse import LONG, MANY_NEW, USES, ReuseModel, classes_of, group_of
from tenuto.pools.policies.runs import LONGEST, Run, RunTree
from tenuto.pools.policies.sketch import hash_words
from tenuto.pools.policies.waiting import WaitingRuns
from tenuto.tokens import BlockHash, BlockKey

_MOST_OPEN = 256  # requests that may still add blocks
_SHORT = 96  # uses within so many new blocks, or a 64th of the slots, are one: a request touches its blocks repeatedly
_LEAST_FIT = 2048  # new blocks between two fits, or an eighth of the slots


class _Request:
    """Batches of one chain that came right after each other; `time`: of the last one."""

    __slots__ = ("group", "is_settled", "n_known", "n_new", "parts", "time", "words")

    def __init__(self, n_known: int) -> None:
        self.is_settled = False
        """Whether its group stays, however much it grows."""
        self.n_new, self.n_known = 0, n_known
        self.time = self.group = 0
        self.parts: list[Run] = []
        self.words: list[tuple[Words, Ints]] = []
        """Of the blocks that were used, and how often."""


class Returns:
    """Leaf before parent; among leaves the lowest expected hits per slot and time, learnt from blocks that came back.

    A block's class is what a cache can see of its request: how often the block was used, how many blocks the request
    added to a chain that was known, how long it is, and whether the block is its last. So sessions that go on are told
    from prompts that never come again, and both from prompts that many share. Leaves wait in queues by level of their
    class and by age; a victim is of the queue whose score is lowest. Nothing is set by hand but how much belief the
    first observations meet.
    """

    def __init__(self) -> None:
        self._model = ReuseModel()
        self._tree = RunTree()
        self._waiting = WaitingRuns(self._model)
        self._open: OrderedDict[int, _Request] = OrderedDict()  # by the slot of their last block
        self._clock = 0
        self._aged_at = self._fit_at = 0
        self._short = _SHORT

    def grow(self, n_slots: int) -> None:
        """See `Policy`."""
        self._short = max(_SHORT, n_slots >> 6)
        self._tree.grow(n_slots)
        self._model.grow(n_slots)

    def cached(self, slots: Slots, keys: Sequence[BlockKey], where: Where) -> None:
        """See `Policy`."""
        if not len(slots):
            return
        self._age(max(64, len(self._tree) >> 6))  # while nothing is evicted: not all at once later
        batch = array("i", slots.tobytes())
        hashes, parents = list(map(hash_of, keys)), list(map(parent_of, keys))
        if parents[1:] == hashes[:-1]:
            self._chain(batch, hashes, where.get(parents[0], -1))
            return
        begin, n = 0, len(batch)
        while begin < n:
            end, step = begin + 1, 1
            while end < n and parents[end] == hashes[end - 1]:
                end += 1
            if end == begin + 1:
                while end < n and parents[end - 1] == hashes[end]:  # what is restored comes the newest first
                    end, step = end + 1, -1
            first = begin if step > 0 else end - 1
            self._chain(batch[begin:end][::step], hashes[begin:end][::step], where.get(parents[first], -1))
            begin = end

    def leased(self, slots: Slots) -> None:
        """See `Policy`."""
        for run, _, _ in self._tree.pieces(array("i", slots.tobytes())):
            if run is not None:
                run.is_leased, run.ticket = True, 0

    def forgotten(self, slots: Slots) -> None:
        """See `Policy`."""
        for run, _, _ in self._tree.pieces(array("i", slots.tobytes())):
            if run is not None:
                self._lose(run, len(run.slots))

    def evict(self, n: int) -> list[int]:
        """See `Policy`."""
        if n and self._clock >= self._fit_at:
            self._model.fit(self._clock)
            self._fit_at = self._clock + max(_LEAST_FIT, len(self._tree) >> 3)
            self._aged_at = -len(self._tree)
        if n:
            self._age(max(16, len(self._tree) >> 8))
        victims: list[int] = []
        while len(victims) < n:
            run = self._waiting.pop()
            if run is None:
                return victims + self._evict_any(n - len(victims))
            victims += self._lose(run, 1 if run.is_end else n - len(victims))
        return victims

    # -- inside -------------------------------------------------------------------------------------

    def _age(self, n_least: int) -> None:
        """Let what waits grow older, if so many new blocks have come since it last did."""
        if self._clock - self._aged_at >= n_least and self._waiting.grow_older(self._clock, self._short):
            self._aged_at = self._clock

    def _evict_any(self, n: int) -> list[int]:
        """Up to `n` victims where all that are left have children that are leased: the longest unused first."""
        victims: list[int] = []
        for run in sorted((run for run in self._tree if not run.is_leased), key=lambda run: run.used_at):
            if len(victims) < n:
                n_more = n - len(victims)
                if len(run.slots) > n_more:
                    self._tree.split(run, len(run.slots) - n_more)
                victims += self._lose(run, n_more)
        return victims

    def _lose(self, run: Run, n: int) -> list[int]:
        """The last `n` slots of a run have no content any more, or all; what is a leaf then waits to go."""
        run.is_end, run.ticket = False, 0
        gone = self._tree.shorten(run, n)
        if run.is_leaf:
            self._waiting.put(run, self._clock, self._short)
        elif not run.slots and (parent := run.parent) is not None:
            run.parent = None  # a chain of runs that are gone is kept by nobody
            parent.n_children -= 1
            if parent.is_leaf:
                self._waiting.put(parent, self._clock, self._short)
        return gone

    def _chain(self, slots: array[int], hashes: list[BlockHash], parent_slot: int) -> None:
        """Blocks that continue each other can be evicted from now on; the first of them continues `parent_slot`."""
        now = self._clock
        request = self._request_of(slots[0], parent_slot)
        if request is not None and self._extend(request, slots, hashes, parent_slot):
            return
        parent = self._tree.ending_at(parent_slot) if parent_slot >= 0 else None
        pieces = self._tree.pieces(slots)
        is_used = [run is None or not run.uses or now - run.used_at > self._short for run, _, _ in pieces]
        for run, _, _ in pieces:
            if run is not None and run.uses:
                run.is_leased = False
        if True in is_used:
            request = request or _Request(int(parent is not None))
            self._use(request, slots, hashes, parent, pieces, is_used)
            return
        for run, _, _ in pieces:
            if run is not None:
                if parent is not None:
                    self._tree.hang(run, parent)
                parent = run
        for run, _, _ in pieces:
            if run is not None and run.is_leaf:
                self._waiting.put(run, now, self._short)

    def _request_of(self, first: int, parent_slot: int) -> _Request | None:
        """The open request that the block of slot `first`, if it is new, goes on."""
        if first in self._tree:
            return None
        request = self._open.pop(parent_slot, None)
        return None if request is None or self._clock - request.time > self._short else request

    def _extend(self, request: _Request, slots: array[int], hashes: list[BlockHash], parent_slot: int) -> bool:
        """The short way for one more part of a long new prompt, as engines compute them: its class is known."""
        run = request.parts[-1]
        if not (
            run.uses == 1 and request.is_settled and self._tree.may_extend(run)
            and run.slots[-1] == parent_slot and not self._tree.has_any(slots)
        ):  # fmt: skip
            return False
        self._revise(request, request.group)
        self._tree.extend(run, slots)
        run.is_end = True
        if self._clock - run.used_at > self._short >> 3:
            run.used_at = self._clock
            self._waiting.put(run, self._clock, self._short)
        request.n_new += len(slots)
        self._model.note(hashes, request.group, run.depth + len(run.slots), self._clock)
        self._keep(request, slots[-1], len(slots))
        return True

    def _use(
        self, request: _Request, slots: array[int], hashes: list[BlockHash], parent: Run | None,
        pieces: list[tuple[Run | None, int, int]], is_used: list[bool],
    ) -> None:  # fmt: skip
        """Blocks of which some are new, or used again after a while."""
        now, words = self._clock, hash_words(hashes)
        used = _spread(is_used, pieces)
        uses = np.zeros(len(slots), np.int64)
        uses[used], picked = self._model.recall(words[used], now)
        runs: list[Run] = []
        n_fresh = 0
        for (run, begin, end), is_again in zip(pieces, is_used, strict=True):
            if run is None:
                request.n_new += end - begin - int(np.count_nonzero(uses[begin:end]))
                uses[begin:end] = np.minimum(uses[begin:end] + 1, USES)
                runs += self._new_runs(slots, uses, begin, end, runs[-1] if runs else parent)
                n_fresh += end - begin
                continue
            before = runs[-1] if runs else parent
            if before is not None:
                self._tree.hang(run, before)
            if not run.uses:
                run.uses, run.is_leased = int(uses[begin]), False
                request.n_new += not run.uses
                n_fresh += 1
            run.uses = min(run.uses + is_again, USES)
            uses[begin:end] = run.uses
            if is_again:
                run.used_at = now
            runs.append(run)
        request.n_known += len(slots) - request.n_new
        length = runs[-1].depth + len(runs[-1].slots)
        self._revise(request, group_of(request.n_new, request.n_known, length))
        for run in runs:
            run.group, run.is_end = request.group, run is runs[-1]
            if run.is_leaf:
                self._waiting.put(run, now, self._short)
        classes = classes_of(uses, request.group)
        self._model.remember(picked, classes[used], length, now)
        request.is_settled = length > LONG and (not request.n_known or request.n_new > MANY_NEW)
        request.parts += runs
        request.words.append((words, uses))
        self._keep(request, slots[-1], n_fresh)

    def _new_runs(self, slots: array[int], uses: Ints, begin: int, end: int, parent: Run | None) -> list[Run]:
        """Runs of new blocks; those of one were used equally often, as far as is known."""
        cuts: list[int] = []
        if uses[begin] != uses[end - 1]:  # they never become more within a chain
            cuts = (np.flatnonzero(uses[begin + 1 : end] != uses[begin : end - 1]) + begin + 1).tolist()
        runs: list[Run] = []
        for first, last in pairwise((begin, *cuts, end)):
            for at in range(first, last, LONGEST):
                parent = self._tree.add(slots[at : min(at + LONGEST, last)], parent)
                parent.uses, parent.used_at = int(uses[first]), self._clock
                runs.append(parent)
        return runs

    def _revise(self, request: _Request, group: int) -> None:
        """The request has grown: what it brought before is of another group now, and its end is no end any more."""
        if request.parts:
            request.parts[-1].is_end = False
        if group != request.group:
            request.group = group
            for run in request.parts:
                run.group = group
                if run.is_leaf:
                    self._waiting.put(run, self._clock, self._short)
        elif request.words:  # the end alone
            request.words = [(words[-1:], uses[-1:]) for words, uses in request.words[-1:]]
        if request.words:
            words, uses = (np.concatenate(parts) for parts in zip(*request.words, strict=True))
            classes = classes_of(uses, group)
            classes[-1] -= 1
            self._model.correct(words, classes)
        if request.is_settled:
            request.words.clear()
            del request.parts[:-1]

    def _keep(self, request: _Request, tail: int, n_new: int) -> None:
        """This request may go on behind slot `tail`."""
        request.time = self._clock
        self._open[tail] = request
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        self._clock += n_new


def _spread(are: list[bool], pieces: list[tuple[Run | None, int, int]]) -> npt.NDArray[np.bool_] | slice:
    """What is so of pieces as what is so of their blocks."""
    if False not in are:
        return slice(None)
    return np.repeat(are, [end - begin for _, begin, end in pieces])
