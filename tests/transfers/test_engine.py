"""The transfer engine: one result each, in the right order, whatever the movers do."""

import threading

import pytest

from tenuto.errors import Cause
from tenuto.transfers.plan import BlockFailure, Route, TransferResult
from tests.transfers.fake_movers import KEYS, transfer

pytestmark = pytest.mark.unit

D2H, H2D, H2K, K2H, K2D = (
    Route.DEVICE_TO_HOST, Route.HOST_TO_DEVICE, Route.HOST_TO_DISK, Route.DISK_TO_HOST, Route.DISK_TO_DEVICE,
)  # fmt: skip


def causes(result: TransferResult) -> dict[int, Cause]:
    return {failure.index: failure.cause for failure in result.failures}


@pytest.mark.parametrize("route", Route)
def test_every_route_gives_one_result_with_bytes_and_time(rig, route):
    rig.movers.on_move = lambda: rig.clock.advance(2.5)
    rig.submit(transfer(1, route, KEYS[:3]))
    assert rig.results() == {1: TransferResult(1, (), 300, 2.5)}
    assert rig.polled() == {}
    assert rig.engine.n_pending() == 0


def test_nothing_submitted_is_nothing_done(rig):
    rig.submit()
    assert rig.results() == {}


def test_failed_blocks_do_not_count_as_bytes(rig):
    rig.movers.failures[1] = [BlockFailure(2, Cause.CORRUPT, "x"), BlockFailure(0, Cause.MISSING)]
    rig.submit(transfer(1, K2H, KEYS[:3]))
    result = rig.results()[1]
    assert [failure.index for failure in result.failures] == [0, 2]
    assert result.failed == {0, 2}
    assert result.n_bytes == 100


def test_copies_from_the_device_end_before_submit_returns_on_the_callers_thread(rig):
    rig.submit(transfer(1, D2H), transfer(2, D2H), transfer(3, D2H))
    assert [moved.transfer_id for moved in rig.movers.moved] == [1, 2, 3]
    assert {moved.thread for moved in rig.movers.moved} == {threading.current_thread()}
    assert set(rig.polled()) == {1, 2, 3}


def test_copies_from_the_device_that_are_still_landing_keep_nobody_on_the_callers_thread(rig):
    rig.movers.hold(1, "land")
    rig.submit(transfer(1, D2H), transfer(2, H2K, after=(1,)), transfer(3, D2H))
    rig.movers.wait_at(1, "land")
    assert rig.movers.gathered == [1, 3]
    assert set(rig.polled()) == {3}
    rig.movers.let_go(1, "land")
    assert set(rig.results()) == {1, 2}
    assert next(moved for moved in rig.movers.moved if moved.transfer_id == 1).thread is not threading.current_thread()


def test_a_landing_that_fails_fails_its_blocks_and_their_writes(rig):
    rig.movers.hold(1, "land")
    rig.movers.errors[1, "land"] = RuntimeError("the device is gone")
    rig.submit(transfer(1, D2H), transfer(2, H2K, after=(1,)))
    rig.movers.let_go(1, "land")
    assert [causes(result) for result in rig.results().values()] == [{0: Cause.IO_ERROR, 1: Cause.IO_ERROR}] * 2


def test_loads_come_after_what_was_gathered_when_they_were_submitted(rig):
    rig.submit(transfer(1, D2H), transfer(2, D2H))
    rig.submit(transfer(3, H2D), transfer(4, K2D), transfer(5, K2H))
    rig.submit(transfer(6, D2H))
    rig.results()
    assert rig.movers.marks == {3: 2, 4: 2, 5: 2}


def test_settling_is_the_movers_affair(rig):
    rig.submit(transfer(1, D2H))
    rig.engine.settle()
    assert rig.movers.settled == [1]


def test_a_follower_starts_only_after_what_it_waits_for(rig):
    rig.movers.hold(1)
    rig.submit(transfer(1, K2H), transfer(2, H2D, after=(1,)))
    rig.movers.wait_at(1)
    assert list(rig.movers.indices()) == [1]
    rig.movers.let_go(1)
    assert set(rig.results()) == {1, 2}
    assert list(rig.movers.indices()) == [1, 2]


def test_a_follower_of_two_waits_for_both(rig):
    rig.movers.hold(1)
    rig.movers.hold(2)
    rig.submit(transfer(1, K2H, KEYS[:1]), transfer(2, K2D, KEYS[1:2]), transfer(3, H2D, after=(1, 2)))
    rig.movers.wait_at(2)
    rig.movers.let_go(2)
    rig.movers.wait_left(2)
    rig.movers.wait_at(1)
    assert 3 not in rig.movers.indices()
    rig.movers.let_go(1)
    assert set(rig.results()) == {1, 2, 3}


def test_a_write_follows_its_stage(rig):
    rig.submit(transfer(1, D2H), transfer(2, H2K, after=(1,)))
    assert set(rig.results()) == {1, 2}
    assert [moved.transfer_id for moved in rig.movers.moved] == [1, 2]


def test_a_transfer_does_not_wait_for_one_that_has_ended(rig):
    rig.submit(transfer(1, D2H))
    rig.submit(transfer(2, H2K, after=(1, 77)))
    assert set(rig.results()) == {1, 2}


def test_a_block_that_failed_is_dropped_by_its_follower_and_the_others_are_moved(rig):
    rig.movers.failures[1] = [BlockFailure(0, Cause.CORRUPT), BlockFailure(2, Cause.IO_ERROR)]
    rig.submit(transfer(1, K2H, KEYS[:4]), transfer(2, H2D, KEYS[1:4], after=(1,)))
    result = rig.results()[2]
    assert causes(result) == {1: Cause.IO_ERROR}  # block 2 is index 1 here
    assert rig.movers.indices()[2] == [0, 2]
    assert result.n_bytes == 200


def test_a_follower_adds_its_own_failures_to_those_it_inherited(rig):
    rig.movers.failures = {1: [BlockFailure(1, Cause.MISSING)], 2: [BlockFailure(2, Cause.IO_ERROR)]}
    rig.submit(transfer(1, K2H, KEYS[:3]), transfer(2, H2D, KEYS[:3], after=(1,)))
    assert causes(rig.results()[2]) == {1: Cause.MISSING, 2: Cause.IO_ERROR}


def test_a_follower_none_of_whose_blocks_arrived_is_not_moved_at_all(rig):
    rig.movers.errors[1, "gather"] = RuntimeError("no memory")
    rig.submit(transfer(1, D2H), transfer(2, H2K, after=(1,)))
    assert causes(rig.results()[2]) == {0: Cause.IO_ERROR, 1: Cause.IO_ERROR}
    assert list(rig.movers.indices()) == []


def test_failures_go_down_a_whole_chain(rig):
    rig.movers.failures[1] = [BlockFailure(1, Cause.CORRUPT)]
    rig.submit(transfer(1, K2H), transfer(2, H2D, after=(1,)), transfer(3, H2K, after=(2,)))
    assert [causes(result) for result in rig.results().values()] == [{1: Cause.CORRUPT}] * 3


@pytest.mark.parametrize("stuck", [H2K, K2H, K2D])
def test_a_stuck_lane_holds_no_other(rig, stuck):
    rig.movers.hold(1)
    rig.submit(transfer(1, stuck))
    rig.movers.wait_at(1)
    others = [route for route in Route if route is not stuck]
    rig.submit(*(transfer(10 + i, route) for i, route in enumerate(others)))
    for i in range(len(others)):
        rig.movers.wait_left(10 + i)
    assert 1 not in rig.polled()
    rig.movers.let_go(1)
    assert 1 in rig.results()


def test_one_lane_moves_in_the_order_of_submission(rig):
    rig.movers.hold(1)
    rig.submit(*(transfer(number, K2H) for number in range(1, 6)))
    rig.movers.let_go(1)
    rig.results()
    assert [moved.transfer_id for moved in rig.movers.moved] == [1, 2, 3, 4, 5]


def test_stores_beyond_the_bound_are_refused_at_once(rig):
    rig.movers.hold(1)
    rig.submit(*(transfer(number, H2K) for number in range(1, 6)))
    polled = rig.polled()
    assert {number: set(causes(result).values()) for number, result in polled.items()} == {
        4: {Cause.THROTTLED},
        5: {Cause.THROTTLED},
    }
    assert rig.engine.n_pending() == 3
    rig.submit(transfer(6, H2K))
    assert causes(rig.polled()[6]) == {0: Cause.THROTTLED, 1: Cause.THROTTLED}
    rig.movers.let_go(1)
    assert set(rig.results()) == {1, 2, 3}
    rig.submit(transfer(7, H2K))
    assert causes(rig.results()[7]) == {}


def test_loads_and_stages_are_not_refused_when_stores_are(rig):
    rig.movers.hold(1)
    rig.submit(*(transfer(number, H2K) for number in range(1, 4)))
    rig.submit(*(transfer(10 + i, route) for i, route in enumerate((D2H, K2H, H2D, K2D))))
    for i in range(4):
        rig.movers.wait_left(10 + i)
    rig.movers.let_go(1)
    assert not any(result.failures for result in rig.results().values())


@pytest.mark.parametrize("route", Route)
def test_an_unexpected_error_costs_that_transfer_only(rig, route, our_log):
    rig.movers.errors[1, "land" if route is D2H else "move"] = RuntimeError("bug")
    rig.submit(transfer(1, route), transfer(2, route))
    results = rig.results()
    assert causes(results[1]) == {0: Cause.IO_ERROR, 1: Cause.IO_ERROR}
    assert results[1].failures[0].message == "internal error"
    assert causes(results[2]) == {}
    assert [r.getMessage() for r in our_log()] == [f"transfer 1 ({route.value}) failed"]


def test_an_unexpected_error_fails_its_follower_too(rig):
    rig.movers.errors[1, "move"] = RuntimeError("bug")
    rig.submit(transfer(1, K2H), transfer(2, H2D, after=(1,)))
    assert causes(rig.results()[2]) == {0: Cause.IO_ERROR, 1: Cause.IO_ERROR}
    assert 2 not in rig.movers.indices()


def test_an_error_while_touching_the_device_leaves_the_load_answerable(rig):
    rig.movers.errors[1, "touch"] = RuntimeError("bug")
    rig.submit(transfer(1, H2D))
    assert causes(rig.results()[1]) == {0: Cause.IO_ERROR, 1: Cause.IO_ERROR}


def test_draining_says_whether_everything_ended(rig):
    assert rig.engine.drain(0)
    rig.movers.hold(1)
    rig.submit(transfer(1, H2K))
    assert not rig.engine.drain(0)
    rig.movers.let_go(1)
    assert rig.engine.drain(30)


def test_closing_ends_the_lanes_after_what_is_queued(rig):
    rig.movers.hold(1)
    rig.submit(transfer(1, H2K), transfer(2, H2K))
    rig.engine.close()
    rig.movers.let_go(1)
    assert set(rig.results()) == {1, 2}


def test_a_poll_that_may_wait_returns_with_the_first_result(rig):
    rig.submit(transfer(1, D2H))
    assert [result.transfer_id for result in rig.engine.poll(30)] == [1]
    assert rig.engine.poll(0.001) == []
    rig.movers.hold(2)
    rig.submit(transfer(2, K2H))
    rig.movers.wait_at(2)
    letting_go = threading.Thread(target=rig.movers.let_go, args=(2,))
    letting_go.start()
    assert [result.transfer_id for result in rig.engine.poll(30)] == [2]
    letting_go.join()


def test_followers_are_started_without_the_lock(rig):
    held = []

    def watch(lane):
        put = lane.put

        def watched(job):
            held.append(rig.engine._changed._is_owned())
            put(job)

        lane.put = watched

    for lane in rig.engine._lanes.values():
        watch(lane)
    rig.movers.hold(1)
    rig.movers.hold(4)
    rig.submit(
        transfer(1, K2H), transfer(2, H2D, after=(1,)), transfer(3, H2K, after=(2,)),
        transfer(4, K2D), transfer(5, H2K, after=(4,)), transfer(6, K2D), transfer(7, H2K, after=(6,)),
    )  # fmt: skip
    rig.movers.wait_at(4)
    rig.engine.cancel([4, 4])
    rig.clock.advance(30)
    rig.polled()
    rig.movers.let_go(1)
    rig.movers.let_go(4)
    rig.results()
    assert held == [False] * 6  # 2 was given up before its source had come


@pytest.mark.parametrize("after", [(1,), (77,)])
def test_a_copy_out_of_the_device_that_is_to_wait_is_refused_and_nothing_taken(rig, after):
    rig.movers.hold(1)
    rig.submit(transfer(1, K2H))
    with pytest.raises(ValueError, match="transfer 3 out of the device can't wait"):
        rig.submit(transfer(2, H2D, after=(1,)), transfer(3, D2H, after=after))
    assert rig.engine.n_pending() == 1
    assert rig.movers.gathered == []
    rig.movers.let_go(1)
    assert set(rig.results()) == {1}
