"""A disk that fails is left alone for a while, and its fault is logged once."""

import pytest

from tenuto.errors import Cause
from tenuto.transfers.plan import Route
from tests.session.session_rig import BLOCK, Rig, View

pytestmark = pytest.mark.unit

TOKENS = list(range(4 * BLOCK))


def fill(rig, name, start, failed=None):
    view = View(name, [start + t for t in TOKENS])
    plan = rig.step((view, 4 * BLOCK))
    rig.answer(plan, failed=failed)
    rig.leader.finish(name)
    return [t.route for t in plan.after_forward]


@pytest.mark.parametrize("cause", [Cause.IO_ERROR, Cause.NO_SPACE])
def test_writes_pause_after_a_refused_one_and_begin_again(cause, our_log):
    rig = Rig(retry_s=10)
    failed = {Route.HOST_TO_DISK: {0: cause, 1: cause}}
    assert Route.HOST_TO_DISK in fill(rig, "a", 0, failed)
    assert Route.HOST_TO_DISK not in fill(rig, "b", 1000)
    rig.clock.advance(10.0)
    assert Route.HOST_TO_DISK in fill(rig, "c", 2000, failed)
    assert len([r for r in our_log() if "host to disk failed" in r.getMessage()]) == 1
    assert rig.leader.statistics()[f"failed.host_to_disk.{cause.value}"] == 4


def test_reads_pause_after_one_that_failed_while_host_memory_serves_on():
    rig = Rig(retry_s=10)
    fill(rig, "a", 0)
    fill(rig, "b", 1000)
    rig.leader.manager.host.invalidate([key.hash for key in list_keys(rig, 0)])
    view = View("c", TOKENS)
    rig.leader.admit("c", list(range(8)), rig.leader.lookup(view, 0))
    rig.answer(rig.step(), failed={Route.DISK_TO_HOST: {0: Cause.IO_ERROR}})
    rig.leader.manager.host.invalidate([key.hash for key in list_keys(rig, 0)])
    assert rig.leader.lookup(View("d", TOKENS), 0) == 0
    assert rig.leader.lookup(View("e", [1000 + t for t in TOKENS]), 0) == 4 * BLOCK
    rig.clock.advance(10.0)
    assert rig.leader.lookup(View("f", TOKENS), 0) == 4 * BLOCK


def list_keys(rig, start):
    from tenuto.tokens import HashChain

    chain = HashChain(rig.leader.setup.namespace.digest, BLOCK)
    chain.append([start + t for t in TOKENS])
    return [chain.key(i) for i in range(4)]


def test_corruption_is_no_reason_to_pause():
    rig = Rig()
    fill(rig, "a", 0)
    rig.leader.manager.host.reset()
    view = View("b", TOKENS)
    rig.leader.admit("b", list(range(8)), rig.leader.lookup(view, 0))
    rig.answer(rig.step(), failed={Route.DISK_TO_HOST: {3: Cause.CORRUPT}, Route.HOST_TO_DEVICE: {3: Cause.CORRUPT}})
    assert rig.leader.lookup(View("c", TOKENS), 0) == 3 * BLOCK  # the fourth is forgotten everywhere


def test_a_load_that_timed_out_pauses_reads_and_not_writes():
    rig = Rig(retry_s=10)
    fill(rig, "a", 0)
    rig.leader.manager.host.reset()
    rig.leader.admit("b", list(range(8)), rig.leader.lookup(View("b", TOKENS), 0))
    rig.answer(rig.step(), failed={Route.HOST_TO_DEVICE: dict.fromkeys(range(4), Cause.TIMEOUT)})
    rig.leader.manager.host.reset()
    assert rig.leader.lookup(View("c", TOKENS), 0) == 0
    assert Route.HOST_TO_DISK in fill(rig, "d", 1000)
    rig.clock.advance(9.9)
    assert rig.leader.lookup(View("e", TOKENS), 0) == 0
    rig.clock.advance(0.1)
    assert rig.leader.lookup(View("f", TOKENS), 0) == 4 * BLOCK
