"""One item on its way, in one piece per disk."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tenuto.errors import Cause, StoreError
from tenuto.tiers.disk.runtime.books import Books, Submission
from tenuto.tiers.disk.runtime.contract import Done, Failed, Final, IoRequest, Op, Short
from tenuto.tiers.disk.runtime.device import Device, Span
from tenuto.tiers.disk.runtime.striping import Piece


class Item:
    """One accepted request; ends when all of its pieces have."""

    __slots__ = ("_books", "_error", "_index", "_lock", "_n_bytes", "_submission", "_unexpected", "n_left", "request")

    def __init__(self, books: Books, submission: Submission, index: int, request: IoRequest) -> None:
        self.request = request
        self._books = books
        self._submission = submission
        self._index = index
        self._lock = threading.Lock()
        self._n_bytes = 0
        self._error: StoreError | None = None
        self._unexpected: BaseException | None = None
        self.n_left = 1
        """Pieces that have not ended."""

    def prepare(self, n_pieces: int) -> bool:
        """Do the work of a write; when it fails, so has the item."""
        is_good = self._try(self._work)
        if not is_good:
            self._ended(n_pieces)
        return is_good

    def read(self, device: Device, piece: Piece) -> None:
        """Move one piece into memory; the last does the work."""
        self._move(lambda: device.read(self.request.file, piece.offset, self._spans(piece)))

    def write(self, device: Device, piece: Piece) -> None:
        """Move one piece out of memory."""
        self._move(lambda: device.write(self.request.file, piece.offset, self._spans(piece)))

    def arrived(self, n_bytes: int) -> None:
        """One piece has moved, as far as its file goes; the last of a read does the work."""
        with self._lock:
            self._n_bytes += n_bytes
        self._ended(1)

    def failed(self, error: BaseException) -> None:
        """One piece has not moved. What is no `StoreError` is a bug, and raised to whoever asks for the states."""
        self._note(error)
        self._ended(1)

    def _move(self, step: Callable[[], int | None]) -> None:
        try:
            n_bytes = step()
        except BaseException as error:  # noqa: BLE001 - border of a thread
            self.failed(error)
        else:
            self.arrived(n_bytes or 0)

    def _spans(self, piece: Piece) -> list[Span]:
        base = self.request.memory_offset
        return [Span(self.request.region, base + offset, n_bytes) for offset, n_bytes in piece.parts]

    def _work(self) -> None:
        if self.request.work is not None:
            self.request.work()

    def _try(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - border of a thread
            self._note(error)
            return False
        return True

    def _note(self, error: BaseException) -> None:
        if isinstance(error, StoreError):
            self._error = error
        else:
            self._unexpected = error

    def _ended(self, n_pieces: int) -> None:
        with self._lock:
            self.n_left -= n_pieces
            if self.n_left:
                return
        request = self.request
        is_good = self._error is None and self._unexpected is None
        if is_good and request.op is Op.READ and self._n_bytes == request.length:
            self._try(self._work)
        self._books.end(self._submission, self._index, self._final(), self._unexpected)

    def _final(self) -> Final:
        if self._error is not None:
            return Failed(self._error.cause, str(self._error))
        if self._unexpected is not None:
            return Failed(Cause.IO_ERROR, f"{type(self._unexpected).__name__}: {self._unexpected}")
        if self.request.op is Op.READ and self._n_bytes < self.request.length:
            return Short(self._n_bytes)
        return Done(self.request.length)
