"""Transfer engines whose lanes end with the test."""

from collections.abc import Iterator

import pytest

from tenuto.testing.clock import FakeClock
from tenuto.transfers.engine import TransferEngine
from tests.transfers.fake_movers import FakeMovers


class Rig:
    """An engine on fake movers and a clock that stands still."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.movers = FakeMovers()
        self.engine = TransferEngine(self.movers, load_timeout_s=30.0, max_queued_stores=3, clock=self.clock)

    def submit(self, *transfers) -> None:
        self.engine.submit(transfers)

    def results(self) -> dict:
        """All results, once nothing is pending: by transfer."""
        assert self.engine.drain(30)
        return self.polled()

    def polled(self) -> dict:
        """The results there are now."""
        results = self.engine.poll()
        found = {result.transfer_id: result for result in results}
        assert len(found) == len(results), "two results for one transfer"
        return found


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Whatever is still held is let go at the end."""
    rig = Rig()
    yield rig
    for transfer_id, where in list(rig.movers._held):
        rig.movers.let_go(transfer_id, where)
    assert rig.engine.drain(30)
    rig.engine.close()
    for lane in rig.engine._lanes.values():
        lane._thread.join(30)
        assert not lane._thread.is_alive()
