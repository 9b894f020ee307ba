"""A manager under any sequence of steps and failures: an index kept from its events is what its pools have."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tenuto.events import PublisherSettings
from tests.events.events_rig import DISK, HOST, Told
from tests.manager.test_manager_model import ManagerModel

pytestmark = pytest.mark.unit


class EventsModel(ManagerModel):
    """The manager's own model; what it tells goes over a way that loses messages, to a reader that asks for them."""

    told: Told | None = None

    def publish(self):
        if self.told is None:
            tiers = ((HOST, self.manager.host), (DISK, self.manager.disk))
            # so little is kept, and fits, that snapshots and losses are as usual as replays
            self.told = Told(*tiers, settings=PublisherSettings(history_bytes=1500, most_waiting=12, batch_events=4))
        facts = self.rig.facts.heard
        self.told.publisher.publish(list(facts))
        facts.clear()

    @precondition(lambda self: hasattr(self, "rig"))
    @rule(n_lost=st.integers(0, 5))
    def tell(self, n_lost):
        self.publish()
        self.told.way.n_to_lose += n_lost
        self.told.publisher.turn()

    @precondition(lambda self: self.told is not None)
    @rule(n=st.integers(1, 5))
    def read(self, n):
        for _ in range(n):
            if (message := self.told.subscription.next(0.0)) is not None:
                self.told.index.take(message)

    @precondition(lambda self: hasattr(self, "rig"))
    @rule()
    def quiesce(self):
        self.publish()
        self.told.settle()
        self.told.check()

    @precondition(lambda self: hasattr(self, "rig"))
    @rule()
    def start_publisher_again(self):
        """Its pools are as they were: what it has not told comes as it would from disk."""
        from tenuto.manager import inventory

        self.publish()
        self.told.begin()
        self.told.publisher.publish(list(inventory({}, *self.told.tiers)))

    def teardown(self):
        super().teardown()
        if hasattr(self, "rig"):
            self.quiesce()


TestEventsModel = EventsModel.TestCase
TestEventsModel.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=50)
