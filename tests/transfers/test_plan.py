"""Transfers and results as data."""

import itertools
import pickle

import pytest

from tenuto.errors import Cause
from tenuto.testing.blocks import make_blocks
from tenuto.transfers.plan import BlockFailure, PageRun, Route, Transfer, TransferResult, merge_results

pytestmark = pytest.mark.unit


def result(*failures: tuple[int, Cause], n_bytes: int = 10, seconds: float = 1.0) -> TransferResult:
    return TransferResult(7, tuple(BlockFailure(index, cause) for index, cause in failures), n_bytes, seconds)


def test_which_routes_somebody_waits_for():
    assert [route.value for route in Route if route.is_load] == ["disk_to_host", "host_to_device", "disk_to_device"]


def test_transfers_and_results_can_be_sent_to_another_process():
    block = make_blocks(1)[0]
    transfer = Transfer(
        1, Route.DEVICE_TO_HOST, (block.key,), targets=(3,), pages=(PageRun((1, 2), 1),), blocks=(block,)
    )
    assert pickle.loads(pickle.dumps(transfer)) == transfer
    failed = result((0, Cause.CORRUPT))
    assert pickle.loads(pickle.dumps(failed)) == failed


def test_a_transfer_shows_no_tokens():
    block = make_blocks(1)[0]
    assert "token_bytes" not in repr(Transfer(1, Route.DEVICE_TO_HOST, (block.key,), blocks=(block,)))


def test_one_rank_agrees_with_itself():
    assert merge_results([result((1, Cause.TIMEOUT))]) == result((1, Cause.TIMEOUT))


def test_a_block_is_moved_only_when_every_rank_has_moved_it():
    merged = merge_results([result((2, Cause.IO_ERROR), seconds=3.0), result(), result((0, Cause.TIMEOUT), n_bytes=5)])
    assert merged == result((0, Cause.TIMEOUT), (2, Cause.IO_ERROR), n_bytes=25, seconds=3.0)
    assert merged.failed == {0, 2}


@pytest.mark.parametrize("loss", [Cause.CORRUPT, Cause.MISSING])
@pytest.mark.parametrize("other", [Cause.IO_ERROR, Cause.TIMEOUT, Cause.CANCELLED, Cause.THROTTLED])
def test_a_block_lost_on_one_rank_is_lost_whatever_the_others_say_and_in_any_order(loss, other):
    for order in itertools.permutations([result((0, loss)), result((0, other)), result()]):
        assert merge_results(list(order)).failures == (BlockFailure(0, loss),)
