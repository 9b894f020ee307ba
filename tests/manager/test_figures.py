"""How transfers ended is counted where it happened."""

import pytest

from tenuto.errors import Cause
from tenuto.manager.figures import record_result
from tenuto.memory.pages import PageRun
from tenuto.metrics import Recorder
from tenuto.tokens import BlockKey
from tenuto.transfers.plan import BlockFailure, Route, Transfer, TransferResult

pytestmark = pytest.mark.unit

KEYS = tuple(BlockKey(bytes([i]) * 16, bytes(16), bytes(16)) for i in range(3))


def counted(transfer: Transfer, result: TransferResult) -> tuple[dict[str, int], list[str]]:
    """What one result counts: figures that are not zero, and names of histograms."""
    recorder = Recorder()
    record_result(recorder, transfer, result)
    now = recorder.snapshot()
    return {name: n for name, n in now.flat().items() if n}, list(now.histograms)


def test_a_transfer_counts_blocks_bytes_and_time_by_route():
    figures, histograms = counted(Transfer(1, Route.HOST_TO_DISK, KEYS), TransferResult(1, (), 3000, 0.5))
    assert figures == {"moved.host_to_disk": 3, "bytes.host_to_disk": 3000}
    assert histograms == ["tenuto_transfer_seconds host_to_disk"]


def test_a_transfer_that_moved_nothing_has_no_time():
    failures = tuple(BlockFailure(i, Cause.TIMEOUT) for i in range(3))
    figures, histograms = counted(Transfer(1, Route.DISK_TO_HOST, KEYS), TransferResult(1, failures))
    assert figures == {"failed.disk_to_host.timeout": 3}
    assert histograms == []


@pytest.mark.parametrize(
    ("transfer", "tier"),
    [
        (Transfer(1, Route.DISK_TO_HOST, KEYS), "disk"),
        (Transfer(1, Route.DISK_TO_DEVICE, KEYS), "disk"),
        (Transfer(1, Route.DISK_TO_HOST, KEYS, volume="other"), "peer"),
        (Transfer(1, Route.HOST_TO_DEVICE, KEYS), "host"),
        (Transfer(1, Route.HOST_TO_DISK, KEYS), "host"),
    ],
)
def test_a_corrupt_block_is_counted_in_the_tier_that_held_it(transfer, tier):
    figures, _ = counted(transfer, TransferResult(1, (BlockFailure(1, Cause.CORRUPT),)))
    assert figures[f"corrupt.{tier}"] == 1
    assert sum(n for name, n in figures.items() if name.startswith("corrupt")) == 1


def test_a_block_that_was_corrupt_before_or_failed_otherwise_is_not_counted_as_corrupt():
    follower = Transfer(2, Route.HOST_TO_DEVICE, KEYS, pages=(PageRun((1,)),) * 3, after=(1,))
    figures, _ = counted(follower, TransferResult(2, (BlockFailure(0, Cause.CORRUPT),)))
    assert figures == {"failed.host_to_device.corrupt": 1, "moved.host_to_device": 2}
    figures, _ = counted(Transfer(1, Route.DISK_TO_HOST, KEYS), TransferResult(1, (BlockFailure(0, Cause.MISSING),)))
    assert figures == {"failed.disk_to_host.missing": 1, "moved.disk_to_host": 2}


def test_transfers_on_their_way_are_told_by_route(make_rig):
    from tenuto.testing.blocks import make_chain
    from tests.manager.manager_rig import routes

    rig = make_rig(n_disk=8)
    assert routes(rig.offload(make_chain(3))) == ["device_to_host", "host_to_disk"]
    figures = rig.manager.statistics()
    assert (figures["flights.device_to_host"], figures["flights.host_to_disk"], figures["flights"]) == (1, 1, 2)
    rig.finish()
    figures = rig.manager.statistics()
    assert (figures["flights.device_to_host"], figures["flights.host_to_disk"], figures["flights"]) == (0, 0, 0)
