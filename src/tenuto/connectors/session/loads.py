"""Loads on their way, and the tokens they bring or fail to bring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tenuto import metrics
from tenuto.connectors.session.costgate import CostGate
from tenuto.errors import Cause
from tenuto.manager import Hit, Onboard
from tenuto.metrics import Recorder
from tenuto.transfers.plan import TransferResult

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
        self._brings: dict[int, _Piece] = {}  # by transfer into host memory that one of those waits for

    def __len__(self) -> int:
        """Transfers that a load waits for."""
        return len(self._loads)

    def queued(self) -> dict[str, int]:
        """Blocks that are being loaded, by the tier that they come from."""
        blocks: dict[str, int] = {}
        for _, piece in self._loads.values():
            blocks[piece.tier] = blocks.get(piece.tier, 0) + piece.n_blocks
        return blocks

    def begin(self, request_id: str, hit: Hit, hit_at: int, onboard: Onboard, *, is_layered: bool = False) -> None:
        """A hit, found when the engine had `hit_at` tokens, is being loaded; `is_layered`: beside what computes."""
        pieces: list[_Piece] = []
        at = hit.start
        for span in hit.spans:
            stop = at + len(span.keys)
            start = max(at * self._block_tokens, hit_at)
            pieces.append(_Piece(span.place, at, stop - at, start, stop * self._block_tokens))
            at = stop
        load = _Load(request_id, self._clock(), pieces, len(pieces), pieces[-1].stop, is_layered)
        into_device = [transfer for transfer in onboard.transfers if transfer.pages]
        for transfer, piece in zip(into_device, pieces, strict=True):
            self._loads[transfer.id] = load, piece
            self._brings.update(dict.fromkeys(transfer.after, piece))
            self._recorder.add(metrics.FOUND_TOKENS, piece.stop - piece.start, piece.tier)
        self._recorder.add(metrics.LOADS, 1)

    def end(self, result: TransferResult) -> str | None:
        """A transfer has ended on all ranks: the request whose load waited for it, if one did."""
        if (brought := self._brings.pop(result.transfer_id, None)) is not None:
            brought.seconds += result.seconds
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

    def _learn(self, load: _Load, piece: _Piece, result: TransferResult) -> None:
        if not result.failures:
            piece.seconds += result.seconds
            self._gate.loaded(piece.tier, piece.n_blocks, piece.seconds)
        elif any(failure.cause is Cause.TIMEOUT for failure in result.failures):  # at least so slow is it
            piece.seconds = self._clock() - load.began
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
        seconds = self._clock() - load.began
        if not load.is_layered:
            self._gate.waited(seconds - sum(piece.seconds for piece in load.pieces))
        slowest = max((piece.tier for piece in load.pieces), key=_SLOWER.index)
        self._recorder.observe(metrics.LOAD_SECONDS, seconds, slowest)
