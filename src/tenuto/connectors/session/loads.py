"""Loads on their way, and the tokens they bring or fail to bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tenuto import metrics
from tenuto.connectors.session.costgate import CostGate
from tenuto.connectors.session.tracker import RequestTracker
from tenuto.errors import Cause
from tenuto.manager import Hit, Onboard
from tenuto.metrics import Recorder
from tenuto.transfers.plan import Route, TransferResult

_SLOWER = ("host", "disk", "peer")


@dataclass(slots=True)
class _Piece:
    """What one transfer of a load brings: tokens [start, stop), from the chain's block `first_block` on."""

    tier: str
    first_block: int
    n_blocks: int
    start: int
    stop: int
    seconds: float = 0.0
    """What its transfers took by themselves, with the one that brings it into host memory."""
    turn_at: float | None = None
    """When what was queued before it had been read."""
    is_read: bool = False
    is_late: bool = False
    """It was given up before its turn, or soon after: what it takes is learnt when it comes."""


@dataclass(slots=True)
class _Load:
    """`sound`: the tokens before it are or will be there; those behind are computed after all."""

    request_id: str
    began: float
    pieces: list[_Piece]
    n_awaited: int
    sound: int
    is_layered: bool


class Loads:
    """Knows which request waits for which transfer, and counts a load when the last of its transfers has ended.

    The cost gate is told what each part took.
    """

    def __init__(self, recorder: Recorder, gate: CostGate, block_tokens: int, clock: Callable[[], float]) -> None:
        self._recorder = recorder
        self._gate = gate
        self._block_tokens = block_tokens
        self._clock = clock
        self._loads: dict[int, tuple[_Load, _Piece]] = {}  # by transfer
        self._has_begun = False
        self._reading: dict[tuple[Route, bool], dict[int, _Piece]] = {}  # by lane and transfer, in their order

    def __len__(self) -> int:
        """Transfers of loads that have not ended."""
        return len(self._loads.keys() | {number for lane in self._reading.values() for number in lane})

    def queued(self) -> dict[str, tuple[int, int]]:
        """What is to be read, by tier: pieces, and their blocks. Also what was given up and is read all the same."""
        found: dict[str, tuple[int, int]] = {}
        for lane in self._reading.values():
            for piece in lane.values():
                n_pieces, n_blocks = found.get(piece.tier, (0, 0))
                found[piece.tier] = n_pieces + 1, n_blocks + piece.n_blocks
        return found

    def n_computing(self, trackers: Mapping[str, RequestTracker]) -> int:
        """Requests beside one that asks which wait for no load: while it computes they wait."""
        loading = {load.request_id for load, _ in self._loads.values() if not load.is_layered}
        return max(sum(t.waits_for is None and name not in loading for name, t in trackers.items()) - 1, 0)

    def asked(self, tracker: RequestTracker) -> None:
        """It is admitted: count what was asked for, once; not when it is admitted again after its load."""
        if tracker.asked_at is None:
            return
        self._recorder.add(metrics.ASKED_TOKENS, tracker.view.n_tokens)
        self._recorder.add(metrics.ENGINE_TOKENS, tracker.asked_at)
        for tier, n in tracker.gated.items():
            self._recorder.add(metrics.GATED_TOKENS, n, tier)
        tracker.asked_at = tracker.refused_at = None
        tracker.gated.clear()

    def begin(self, request_id: str, hit: Hit, hit_at: int, onboard: Onboard, *, is_layered: bool = False) -> bool:
        """A hit, found when the engine had `hit_at` tokens, is being loaded; `is_layered`: beside what computes.

        Whether it is the first ever.
        """
        pieces: list[_Piece] = []
        at = hit.start
        for span in hit.spans:
            stop = at + len(span.keys)
            start = max(at * self._block_tokens, hit_at)
            pieces.append(_Piece(span.place, at, stop - at, start, stop * self._block_tokens))
            at = stop
        load = _Load(request_id, self._clock(), pieces, len(pieces), pieces[-1].stop, is_layered)
        routes = {transfer.id: transfer.route for transfer in onboard.transfers}
        into_device = [transfer for transfer in onboard.transfers if transfer.pages]
        for transfer, piece in zip(into_device, pieces, strict=True):
            self._loads[transfer.id] = load, piece
            reader = transfer.after[0] if transfer.after else transfer.id
            lane = self._reading.setdefault((routes[reader], is_layered), {})
            piece.turn_at = None if lane and not is_layered else load.began
            lane[reader] = piece
            self._recorder.add(metrics.FOUND_TOKENS, piece.stop - piece.start, piece.tier)
        self._recorder.add(metrics.LOADS, 1)
        is_first, self._has_begun = not self._has_begun, True
        return is_first

    def end(self, result: TransferResult) -> str | None:
        """A transfer has ended on all ranks: the request whose load waited for it, if one did."""
        read = self._read(result.transfer_id)
        if read is not None and result.transfer_id not in self._loads:
            read.seconds, read.is_read = result.seconds, True
            if read.is_late and not result.failures:
                self._gate.loaded(read.tier, read.n_blocks, read.seconds)
            return None
        load, piece = self._loads.pop(result.transfer_id, (None, None))
        if load is None or piece is None:
            return None
        self._learn(load, piece, result)
        for index in result.failed:
            load.sound = min(load.sound, max((piece.first_block + index) * self._block_tokens, piece.start))
        load.n_awaited -= 1
        if not load.n_awaited:
            self._count(load)
        return load.request_id

    def _read(self, number: int) -> _Piece | None:
        """What this transfer has read, out of its lane; the next one there has its turn."""
        lane = next((lane for lane in self._reading.values() if number in lane), None)
        if lane is None:
            return None
        piece = lane.pop(number)
        following = next(iter(lane.values()), None)
        if following is not None and following.turn_at is None:
            following.turn_at = self._clock()
        return piece

    def _learn(self, load: _Load, piece: _Piece, result: TransferResult) -> None:
        if not result.failures:
            piece.seconds += result.seconds
            self._gate.loaded(piece.tier, piece.n_blocks, piece.seconds)
        elif load.is_layered and piece.tier == "host":
            return  # it was given up with the others of its step: they wait for each other
        elif any(failure.cause is Cause.TIMEOUT for failure in result.failures) and not piece.is_read:
            now = self._clock()
            piece.seconds = 0.0 if piece.turn_at is None else now - piece.turn_at
            piece.is_late = piece.seconds <= (now - load.began) / 2
            if not piece.is_late:  # at least so slow is it
                self._gate.loaded(piece.tier, piece.n_blocks, piece.seconds)

    def spoil(self) -> None:
        """The cache was reset: what is on its way is computed after all."""
        for load, _ in self._loads.values():
            load.sound = 0

    def _count(self, load: _Load) -> None:
        for piece in load.pieces:
            n_loaded = max(min(load.sound, piece.stop) - piece.start, 0)
            self._recorder.add(metrics.LOADED_TOKENS, n_loaded, piece.tier)
            self._recorder.add(metrics.FAILED_TOKENS, piece.stop - piece.start - n_loaded, piece.tier)
        now = self._clock()
        seconds = now - load.began
        if load.sound == load.pieces[-1].stop and not load.is_layered:
            queued = max(now if piece.turn_at is None else piece.turn_at for piece in load.pieces) - load.began
            self._gate.waited(seconds - queued - sum(piece.seconds for piece in load.pieces))
        slowest = max((piece.tier for piece in load.pieces), key=_SLOWER.index)
        self._recorder.observe(metrics.LOAD_SECONDS, seconds, slowest)
