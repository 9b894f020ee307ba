"""What a rule is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tenuto.advisor.orders import Order
from tenuto.advisor.placement import View


class Rule(Protocol):
    """Looks at one worker's volumes and says what to do. A volume's `room` counts the orders of rules before it."""

    def plan(self, view: View) -> Iterable[Order]:
        """What to do now, the most useful first: what is beyond the rate, or has no room, is left out."""
        ...
