"""Whether the disk tier is used: a disk that fails is left alone for a while, and logged once."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tenuto.errors import Cause
from tenuto.manager.manager import BlockManager
from tenuto.transfers.plan import Route, TransferResult

logger = logging.getLogger(__name__)

_SICK = (Cause.IO_ERROR, Cause.NO_SPACE, Cause.TIMEOUT)


class DiskHealth:
    """Pauses reading or writing of the disk for `retry_s` when a transfer failed for a reason of the disk's."""

    def __init__(self, manager: BlockManager, retry_s: float, clock: Callable[[], float]) -> None:
        self._manager = manager
        self._retry_s = retry_s
        self._clock = clock
        self._read_again_at = 0.0
        self._write_again_at = 0.0
        self._logged: set[tuple[Route, Cause]] = set()

    def note(self, route: Route, result: TransferResult) -> None:
        """Look at how a transfer on `route` ended."""
        for failure in result.failures:
            seen = (route, failure.cause)
            if seen not in self._logged and failure.cause is not Cause.CANCELLED:
                self._logged.add(seen)
                logger.warning(
                    "tenuto: %s failed (%s: %s): served as a miss, counted; more of these are not logged",
                    route.value.replace("_", " "), failure.cause.value, failure.message or "no detail",
                )  # fmt: skip
        if any(failure.cause in _SICK for failure in result.failures):
            again_at = self._clock() + self._retry_s
            if route is Route.HOST_TO_DISK:
                self._write_again_at = again_at
            elif route.is_load:
                self._read_again_at = again_at
            self.update()

    def update(self) -> None:
        """Switch the tier off or on again by the clock."""
        now = self._clock()
        self._manager.use_disk(read=now >= self._read_again_at, write=now >= self._write_again_at)
