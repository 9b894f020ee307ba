"""Times of engines by the advisor's own clock, which nobody sets."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import structs

from tenuto.events import Batch, Message


class OwnClock:
    """Engines tell wall times, which leap when the clock is set; what is planned goes by a clock that does not."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.wall_s = wall
        """Seconds since 1970, for people."""
        self.now_s = monotonic
        """Seconds since some time."""

    def translated(self, message: Message) -> Message:
        """The message with the time of this clock: never later than now."""
        if not isinstance(message, Batch):
            return message
        now_s = self.now_s()
        sent_s = min(now_s, message.time_ms / 1e3 + now_s - self.wall_s())
        return structs.replace(message, time_ms=round(1e3 * sent_s))
